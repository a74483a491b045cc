#!/usr/bin/env bash
# clang-tidy over all sources of the upper half and over those of the lower half that changed (eight
# at most: each takes half a minute). Usage: tidy.sh BUILD_DIR JOBS, after a build. A source that
# passed is skipped until it, a header of ours that it includes, or the configuration changes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 jobs=$2
cache=build/tidy-cache
mkdir -p "$cache"

lower=$(awk -F'[ ()]+' '/^millrace_folder\(.* TORCH/ { print $2 }' CMakeLists.txt | paste -sd '|')
lower="^millrace/($lower|cli/torch)/"
base=$(git merge-base HEAD origin/HEAD 2> /dev/null || git rev-parse -q --verify HEAD~1 || true)
changed=$({ git diff --name-only "${base:-HEAD}" -- 'millrace/*.cc'; git ls-files -o --exclude-standard -- 'millrace/*.cc'; } 2> /dev/null |
  grep -E "$lower" | head -n 8 || true)

# One line a source: its name, then every file of ours that the compiler read for it.
dependencies() {
  ninja -C "$build" -t deps | awk -v root="$PWD/" '
    /^[^ ]/ { if (line) print line; line = "" }
    /^ / {
      if (index($1, root) == 1) file = substr($1, length(root) + 1)
      else { file = $1; sub(/^(\.\.\/)+/, "", file) }
      if (file ~ /^millrace\//) line = line file " "
    }
    END { if (line) print line }' | grep -E '^millrace/[^ ]*\.cc ' | sort -u || true
}

# Version 16 knows enough of C++20; an older one refuses valid sources.
tidy=$(command -v clang-tidy-16 || command -v clang-tidy)

# Of a source of the lower half, only findings in our own files count: clang does not accept this
# libtorch's headers together with the C++20 standard library of gcc 12, but reads on behind them.
tidy_one() {  # STAMP SOURCE
  local log=$1.log ours="^$PWD/millrace/.*: (warning|error):"
  if "$tidy" --quiet --extra-arg=-Wno-unknown-warning-option -p "$build" "$2" > "$log" 2>&1 || { [[ $2 =~ $lower ]] && ! grep -qE "$ours" "$log"; }; then
    mv "$log" "$1"
    return
  fi
  if [[ $2 =~ $lower ]]; then
    grep -E -A 3 "$ours" "$log"
  else
    grep -vE '^[0-9]+ warnings' "$log"
  fi
  rm "$log"
  return 1
}
export -f tidy_one
export tidy build lower

dependencies | while read -r source others; do
  if [[ $source =~ $lower ]] && ! grep -qxF "$source" <<< "$changed"; then
    continue
  fi
  # shellcheck disable=SC2086  # a list of names without spaces
  stamp=$cache/$(cat .clang-tidy "$source" $others | sha256sum | cut -d ' ' -f 1)
  [[ -f $stamp ]] || printf '%s\0%s\0' "$stamp" "$source"
done | xargs -0 -r -n 2 -P "$jobs" bash -c 'tidy_one "$@"' tidy
