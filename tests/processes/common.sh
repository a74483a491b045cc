# What the scripts of this folder share. Sourced by bash with MILLRACE set; works in a folder of its
# own, and fails when a process of a run is left.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
work=$(mktemp -d)
export MILLRACE_CACHE=$work/cache
config=tests/processes/run.toml
failed=0

complain() {
  echo "FAILED: $1" >&2
  failed=$((failed + 1))
}

# Processes that were started with this script's cache, whoever their parent is by now.
processes_left() {
  grep -lza "^MILLRACE_CACHE=$work/cache" /proc/[0-9]*/environ 2> /dev/null |
    sed 's|/proc/\([0-9]*\)/.*|\1|' | while read -r pid; do
    [[ $(readlink "/proc/$pid/exe") == *millrace* ]] && echo "$pid"
  done
}

check_nobody_left() {
  local i
  for i in {1..30}; do
    [[ -z $(processes_left) ]] && return
    sleep 0.1
  done
  complain "$1: left processes: $(processes_left | tr '\n' ' ')"
  processes_left | xargs -r kill -9
}

clean_up() {
  processes_left | xargs -r kill -9 2> /dev/null
  rm -rf "$work"
}
trap clean_up EXIT

# Engines whose processes Millrace can start here.
engines() {
  echo gloo
  if "$MILLRACE" doctor 2> /dev/null | grep -q "mpi" && command -v mpirun > /dev/null; then
    echo mpi
  fi
}
