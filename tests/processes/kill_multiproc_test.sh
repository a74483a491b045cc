#!/usr/bin/env bash
# SIGKILL of a random process at a random moment, started by Millrace: the run ends within ten
# seconds with status 1, names the process and the signal, and leaves nothing. KILLS says how many
# times an engine (default 4), SEED which moments.
set -uo pipefail
source "$(dirname "$0")/common.sh"
kills=${KILLS:-4}
RANDOM=${SEED:-7}
slowest=0

"$MILLRACE" train "$config" --run-dir "$work/first" > "$work/out" 2>&1 || complain "$(cat "$work/out")"
for engine in $(engines); do
  for ((i = 0; i < kills; ++i)); do
    rm -rf "$work/run"
    "$MILLRACE" train "$config" --run-dir "$work/run" --processes 3 --engine "$engine" \
      --set train.epochs=4000 > "$work/out" 2>&1 &
    launcher=$!
    sleep "$((RANDOM % 4)).$((RANDOM % 10))5"
    mapfile -t victims < <(processes_left | while read -r pid; do
      [[ $(readlink "/proc/$pid/exe") == *millrace-torch ]] && echo "$pid"
    done)
    for _ in {1..50}; do
      ((${#victims[@]} > 0)) && break
      sleep 0.1
      mapfile -t victims < <(processes_left | while read -r pid; do
        [[ $(readlink "/proc/$pid/exe") == *millrace-torch ]] && echo "$pid"
      done)
    done
    victim=${victims[RANDOM % ${#victims[@]}]}
    kill -9 "$victim"
    start=$(date +%s%N)
    wait "$launcher"
    status=$?
    took=$((($(date +%s%N) - start) / 1000000))
    ((took > slowest)) && slowest=$took
    [[ $status == 1 ]] || complain "$engine $i: status $status: $(tail -3 "$work/out")"
    ((took < 10000)) || complain "$engine $i: ended after $took ms"
    # mpirun names a process that was killed before it could tell its number.
    grep -qE "process [0-9]+ \(pid $victim.*killed by signal 9|process rank [0-9]+ .*exited on signal 9" \
      "$work/out" ||
      complain "$engine $i: expected process $victim and its signal in: $(tail -3 "$work/out")"
    check_nobody_left "$engine $i"
  done
done
echo "slowest end: $slowest ms"
exit $((failed > 0))
