#!/usr/bin/env bash
# A run over processes ends with the very weights of the same run over threads, on every engine; it
# drains on SIGTERM, and goes on from there with another number of processes.
set -uo pipefail
source "$(dirname "$0")/common.sh"

train() {
  "$MILLRACE" train "$config" "$@" > "$work/out" 2>&1
}

weights() {
  echo "$work/$1/checkpoints/$(ls "$work/$1/checkpoints" | grep step | tail -1)/tensors.safetensors"
}

same_weights() {
  cmp -s "$(weights "$1")" "$(weights threads)" || complain "$1: other weights than over threads"
}

train --run-dir "$work/threads" || complain "threads: $(cat "$work/out")"
for engine in $(engines); do
  for processes in 2 3; do
    name=$engine-$processes
    train --run-dir "$work/$name" --processes "$processes" --engine "$engine" ||
      complain "$name: $(cat "$work/out")"
    grep -q "test accuracy" "$work/out" || complain "$name: no result: $(cat "$work/out")"
    same_weights "$name"
    [[ -s $work/$name/report.html ]] || complain "$name: no report"
    check_nobody_left "$name"
  done
done

# A longer run is asked to stop after some steps; the rest is done by another number of processes.
train --run-dir "$work/drained" --processes 3 --set train.epochs=400 &
run=$!
for _ in {1..300}; do
  sleep 0.1
  [[ $(grep -c '"event": "step"' "$work/drained/metrics.jsonl" 2> /dev/null) -gt 20 ]] && break
done
# The launcher, not the subshell that waits for it.
pkill -TERM -P "$run" -x millrace || kill -TERM "$run"
wait "$run"
status=$?
[[ $status == 143 ]] || complain "drained: status $status, expected 143: $(tail -5 "$work/out")"
grep -q "drained and saved" "$work/out" || complain "drained: $(tail -3 "$work/out")"
check_nobody_left drained
step=$(basename "$(dirname "$(weights drained)")" | sed 's/step-0*//')
train --resume "$work/drained" --processes 2 --set train.epochs=400 \
  --set "train.max_steps=$((step + 7))" || complain "resumed: $(cat "$work/out")"
"$MILLRACE" train "$config" --run-dir "$work/whole" --set train.epochs=400 \
  --set "train.max_steps=$((step + 7))" > "$work/out" 2>&1 || complain "whole: $(cat "$work/out")"
cmp -s "$(weights drained)" "$(weights whole)" || complain "resumed at step $step: other weights"

# What is wrong is said once, with the status of wrong input.
train --processes 4
[[ $? == 2 ]] || complain "more processes than workers: status $?"
RANK=0 WORLD_SIZE=2 "$MILLRACE" train "$config" > "$work/out" 2>&1
[[ $? == 2 ]] || complain "no MASTER_ADDR: status $?"
train --processes 2 --engine smoke
[[ $? == 2 ]] || complain "an engine that is none: status $?"

exit $((failed > 0))
