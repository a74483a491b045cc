#!/usr/bin/env bash
# Four emulated ranks, from a profile of our own: train, verify, evaluate, resume, bench, refusals.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cat > profile.json <<'JSON'
{"artifact": "profile", "version": 1, "model": "six", "samples_per_microbatch": 8, "layers": [
 {"name": "a", "forward_s": 0.001, "input_gradient_s": 0.001, "weight_gradient_s": 0.001, "output_bytes": 80000, "parameter_bytes": 4000, "stash_bytes": 80000},
 {"name": "b", "forward_s": 0.001, "input_gradient_s": 0.001, "weight_gradient_s": 0.001, "output_bytes": 80000, "parameter_bytes": 0, "stash_bytes": 80000},
 {"name": "c", "forward_s": 0.001, "input_gradient_s": 0.001, "weight_gradient_s": 0.001, "output_bytes": 40000, "parameter_bytes": 40000, "stash_bytes": 80000},
 {"name": "d", "forward_s": 0.001, "input_gradient_s": 0.001, "weight_gradient_s": 0.001, "output_bytes": 40000, "parameter_bytes": 40000, "stash_bytes": 80000},
 {"name": "e", "forward_s": 0.001, "input_gradient_s": 0.001, "weight_gradient_s": 0.001, "update_s": 0.0005, "output_bytes": 8000, "parameter_bytes": 400000, "stash_bytes": 80000},
 {"name": "f", "forward_s": 0.0005, "input_gradient_s": 0.0005, "weight_gradient_s": 0.0005, "output_bytes": 320, "parameter_bytes": 8000, "stash_bytes": 8000}]}
JSON
cat > cluster.toml <<'TOML'
[[level]]
size = 4
bandwidth_bytes_per_s = 100e6
TOML
cat > emulated.toml <<'TOML'
[parallel]
workers = 4
stages = 4
replicas = 1
cluster = "cluster.toml"
schedule = "pipedream"
[train]
batch = 8
max_steps = 20
[emulate]
profile = "profile.json"
time_scale = 2
[[emulate.link]]
from = 1
to = 2
bandwidth_bytes_per_s = 20e6
latency_s = 100e-6
TOML

"$MILLRACE" train emulated.toml --run-dir run --json > out 2> err || complain "train: $(tail -n 1 out err)"
[[ $(grep -c '"event": "step"' out) == 20 ]] || complain "train: expected 20 steps"
grep -q 'emulated devices and links' out || complain "train: no word that devices are emulated"
[[ ! -e cache ]] || complain "something was measured"
step_of() { grep -o '"step_s": [0-9.e-]*' "$1" | head -n 1 | grep -o '[0-9.e-]*$'; }
# What is measured is told in the devices' own seconds: near the prediction and not near twice that.
awk -v measured="$(step_of run/trace.json)" -v predicted="$(step_of run/prediction.json)" \
  'BEGIN { exit !(predicted > 0 && measured > 0.9 * predicted) }' ||
  complain "predicted $(step_of run/prediction.json) s, measured $(step_of run/trace.json) s"
[[ -f run/report.html ]] || complain "no report"

"$MILLRACE" eval run --json > out 2> err || complain "eval: $(tail -n 1 err)"
"$MILLRACE" train emulated.toml --resume run --set train.max_steps=24 --json > out 2> err ||
  complain "resume: $(tail -n 1 err)"
grep -q '"event": "done".*"steps": 4' out || complain "resume: expected 4 more steps"
"$MILLRACE" verify emulated.toml --steps 5 --json > out 2> err || complain "verify: $(tail -n 1 err)"
"$MILLRACE" verify emulated.toml --steps 5 --break stash > out 2>&1 && complain "verify: a broken stash passes"

"$MILLRACE" bench emulation emulated.toml --repeats 1 --json > out 2> err || complain "bench: $(tail -n 1 err)"
tr -d '\n' < out | grep -qE '"this_plan": .*"simulated_s": .*"data_parallel": .*"promise": .*"gain":' ||
  complain "bench: $(head -c 300 out)"

# refuses NAME STATUS PART ARGUMENTS...
refuses() {
  local name=$1 part=$2
  shift 2
  "$MILLRACE" "$@" > out 2> err
  [[ $? == 2 ]] || complain "$name: expected exit status 2"
  grep -q -- "$part" err || complain "$name: expected '$part', found $(tail -n 1 err)"
}
refuses "bench without a file" "needs a configuration" bench emulation
refuses "bench of a real run" "expected a table \[emulate\]" bench emulation run.toml
refuses "profiling a profile" "computes nothing" profile emulated.toml -o p.json
refuses "a model beside a profile" "leave out one" train emulated.toml --set model.name=lenet
finish "emulated runs work"
