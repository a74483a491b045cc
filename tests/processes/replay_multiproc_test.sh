#!/usr/bin/env bash
# The trace of a run over two processes is replayed: their clocks are aligned from messages to within
# a millisecond of what the host's own clock says, and of 50 ms put into one trace on top; so is a
# data-parallel run's, which has reductions alone. How close the replayed step is to the measured one
# is a bench's matter; here it must be of its size.
set -uo pipefail
source "$(dirname "$0")/common.sh"

# The number at a key of the second process's clock, in microseconds.
clock() {
  tr -d '\n' < "$1" | grep -o '"process": 1,[^}]*' | grep -o "\"$2\": [^,}]*" |
    awk '{ printf "%d", $2 * 1e6 }'
}

number() {
  grep -o "\"$2\": [^,}]*" "$1" | head -1 | awk '{ printf "%d", $2 * 1e9 }'
}

# Moves the clock of process 1 by 50 ms.
skew() {
  awk '
    /"rank":/ { second = 0 }
    /"process": 1/ { second = 1 }
    second {
      for (k = 1; k <= 2; ++k) {
        key = k == 1 ? "\"start_s\": " : "\"end_s\": "
        at = index($0, key)
        if (at) {
          rest = substr($0, at + length(key))
          match(rest, /^[-+.0-9e]+/)
          $0 = substr($0, 1, at + length(key) - 1) sprintf("%.12g", substr(rest, 1, RLENGTH) + 0.05) substr(rest, RLENGTH + 1)
        }
      }
    }
    { print }' "$1" > "$1.new" && mv "$1.new" "$1"
}

check() {
  local run=$work/$1
  "$MILLRACE" replay "$run" --json > "$work/$1.json" 2> "$work/out" ||
    complain "$1: $(cat "$work/out" "$work/$1.json")"
  local offset half by_host
  offset=$(clock "$work/$1.json" offset_s)
  half=$(clock "$work/$1.json" half_width_s)
  by_host=$(clock "$work/$1.json" by_host_s)
  local error=$((offset - by_host - $2))
  ((${error#-} <= 1000 && ${error#-} <= half + 1)) ||
    complain "$1: offset $offset us (half width $half), by the host $by_host, skew $2"
  local measured replayed
  measured=$(number "$work/$1.json" measured_step_s)
  replayed=$(number "$work/$1.json" replayed_step_s)
  ((replayed > measured / 3 && replayed < measured * 3)) ||
    complain "$1: a step of $measured ns was replayed in $replayed"
}

for layout in pipeline parallel; do
  settings=(--set parallel.workers=2 --set parallel.stages=2)
  if [[ $layout == parallel ]]; then
    settings=(--set parallel.workers=2 --set parallel.stages=1 --set parallel.replicas=2
      --set parallel.rule=gradient-flow)
  fi
  "$MILLRACE" train "$config" --run-dir "$work/$layout" --processes 2 "${settings[@]}" \
    > "$work/out" 2>&1 || complain "$layout: $(cat "$work/out")"
  check "$layout" 0
  skew "$work/$layout/trace.json"
  check "$layout" 50000
  check_nobody_left "$layout"
done
"$MILLRACE" replay "$work/parallel" --set reduce.bandwith=x2 > "$work/out" 2>&1
[[ $? == 2 ]] && grep -q 'did you mean `reduce.bandwidth`' "$work/out" ||
  complain "a wrong key: $(cat "$work/out")"
"$MILLRACE" replay "$work/parallel" --optimize --set reduce.bandwidth=x2 > "$work/out" 2>&1
grep -q "rule.threshold_kib=" "$work/out" || complain "no proposal: $(cat "$work/out")"

((failed == 0)) && echo "clocks of two processes aligned, runs replayed"
exit "$((failed > 0))"
