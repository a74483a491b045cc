#!/usr/bin/env bash
# --json of the torch commands: stdout is JSON and nothing else.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# gives NAME PATTERN ARGUMENTS...: the output, on one line, must match PATTERN.
gives() {
  local name=$1 pattern=$2
  shift 2
  "$MILLRACE" "$@" --json > out 2> err || complain "$name: $(tail -n 1 err)"
  tr -d '\n' < out | grep -qE "$pattern" || complain "$name: expected $pattern, found $(head -c 300 out)"
}

gives train '"event": "done", "run_dir": "run"' train run.toml --run-dir run
! grep -vqE '^\{"event": "[a-z]+", .*\}$' out || complain "train: a line that is no event"
[[ $(grep -c '"event": "step"' out) == 20 ]] || complain "train: expected 20 steps"
[[ $(grep -c '"event": "eval"' out) == 2 ]] || complain "train: expected 2 evaluations"
gives eval '^\{ *"event": "eval", .*"samples": 50\}$' eval run
accuracy=$(grep -o '"accuracy": [0-9.]*' out)
[[ -n $accuracy && $accuracy == "$(grep -o '"accuracy": [0-9.]*' run/metrics.jsonl | tail -n 1)" ]] ||
  complain "eval and train disagree: $accuracy"
gives verify '^\{ *"equal": true, *"steps": 10,.*"first_difference": null' verify run.toml --steps 1000
gives profile '^\{ *"artifact": "profile",.*\}$' profile run.toml -o profile.json
gives kernels '^\{ *"artifact": "kernels",.*"rows": \[.*"findings": \[.*\}$' profile run.toml --kernels
[[ -s kernels.json ]] || complain "kernels: nothing written to kernels.json"
gives doctor '^\{ *"machine": .*\}$' doctor
finish "stdout is JSON"
