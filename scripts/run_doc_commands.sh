#!/usr/bin/env bash
# Runs the commands of a page's blocks that are fenced as "```sh run", all in one shell, in a
# temporary folder that holds a copy of examples/. Usage: run_doc_commands.sh BIN_DIR PAGE...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
shift

run_page() {
  local page=$1 folder
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' RETURN
  if [[ -d $root/examples ]]; then
    cp -r "$root/examples" "$folder"
  fi
  # All other lines become empty ones, so that the shell's line numbers are the page's. Line 1 can
  # hold no command, only a fence.
  awk 'NR == 1 {
         printf "set -eEuo pipefail; trap %s ERR", "\047echo \"$PAGE:$LINENO: failed: $BASH_COMMAND\" >&2\047"
       }
       /^```/ { run = !inside && /^```sh run/; inside = !inside; print ""; next }
       { print run && inside ? $0 : "" }' "$page" > "$folder/.commands"
  echo "$page"
  (cd "$folder" && PATH="$bin:$PATH" PAGE="$page" bash .commands)
}

for page in "$@"; do
  run_page "$(realpath --relative-to "$PWD" "$page")"
done
