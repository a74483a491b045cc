#!/usr/bin/env bash
# A signal in the middle of training, kill -9 too, then --resume: every step stands once in
# metrics.jsonl.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# stopped SIGNAL STATUS WORKERS SCHEDULE
stopped() {
  local name="$4 on $3 workers, $1" dir=run-$1-$3-$4 status last
  local settings=(-n "$3" --set "parallel.stages=$3" --set "parallel.schedule=$4" --set data.samples=2000)
  "$MILLRACE" train run.toml "${settings[@]}" --set train.epochs=100000 --run-dir "$dir" > out 2> err &
  local program=$!
  until grep -qs '"event": "checkpoint"' "$dir/metrics.jsonl"; do
    kill -0 $program 2> /dev/null || { complain "$name: ended early: $(cat err)"; return; }
    sleep 0.02
  done
  kill "-$1" $program
  wait $program 2> /dev/null
  status=$?
  [[ $status == "$2" ]] || complain "$name: status $status, expected $2: $(cat err)"
  if [[ $1 != KILL ]]; then
    grep -q "^interrupted: drained and saved; go on with .*--resume $dir" out || complain "$name: no message"
  fi
  last=$(sed 's/step-0*//' "$dir/checkpoints/latest")
  local epochs=$((last / 100 + 2))
  "$MILLRACE" train run.toml "${settings[@]}" --set train.epochs=$epochs --resume "$dir" > out 2> err ||
    complain "$name: resume: $(cat err)"
  grep -o '"event": "step", "step": [0-9]*' "$dir/metrics.jsonl" | grep -o '[0-9]*$' > steps
  cmp -s steps <(seq $((epochs * 100))) || complain "$name: the steps have a gap or a repeat"
}

stopped INT 130 2 pipedream
stopped TERM 143 3 pipedream
stopped INT 130 3 1f1b
stopped TERM 143 2 1f1b
stopped KILL 137 2 pipedream
finish "every stopped run went on where it was"
