#!/usr/bin/env bash
# A predictor learned from a few layers, and profiles whose times it predicts: what is written, what
# planners make of it, refusals. How good it is, is `millrace bench latency`'s own answer.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$MILLRACE" bench latency --layers 80 --repeats 1 -o learned --json > out 2> err || complain "bench: $(tail -n 1 err)"
for part in '"held_out"' '"what": "all"' '"devices"' '"device": "sleep"' '"device": "compute"' '"device": "memory"' \
  '"partition"'; do
  grep -q "$part" out || complain "bench: expected $part in $(head -c 300 out)"
done
for file in first-4 first-16 first-64 sleep-16 compute-16 memory-16 model; do
  [[ -s learned/$file.json ]] || complain "bench: learned/$file.json is missing"
done
cp learned/model.json before.json
"$MILLRACE" bench latency --from learned -o again > out 2> err || complain "bench --from: $(tail -n 1 err)"
cmp -s before.json again/model.json || complain "bench --from: another model from the same measurements"

"$MILLRACE" profile run.toml --predict learned/model.json -o predicted.json > out 2> err || complain "predict: $(tail -n 1 err)"
grep -q '"estimated": \["forward_s", "input_gradient_s", "weight_gradient_s", "update_s"\]' predicted.json ||
  complain "predict: times are not called estimated"
"$MILLRACE" profile run.toml -o measured.json > out 2> err || complain "profile: $(tail -n 1 err)"
counts() { grep -E '"(name|output_bytes|parameter_bytes|stash_bytes|kept_bytes)"' "$1"; }
diff <(counts predicted.json) <(counts measured.json) > /dev/null || complain "predict: other bytes than the measured profile's"
"$MILLRACE" profile run.toml --predict learned/model.json --observe 2 -o observed.json > out 2> err ||
  complain "observe: $(tail -n 1 err)"
grep -q "of 2 layers observed" out || complain "observe: $(head -n 3 out)"
cmp -s predicted.json observed.json && complain "observe: what was observed changed nothing"
cat > cluster.toml <<'TOML'
[[level]]
size = 2
bandwidth_bytes_per_s = 1e9
TOML
"$MILLRACE" plan observed.json --cluster cluster.toml --planner pipedream > out 2> err || complain "plan: $(tail -n 1 err)"

refuses() {
  local what=$1 text=$2
  shift 2
  "$MILLRACE" "$@" > out 2> err
  local status=$?
  [[ $status == 2 ]] || complain "$what: expected status 2, got $status"
  grep -q -- "$text" err || complain "$what: expected \"$text\", found $(tail -n 1 err)"
}
refuses "a profile for a model" "latency_model" profile run.toml --predict measured.json
refuses "no such model" "nowhere.json" profile run.toml --predict nowhere.json
refuses "float64" "float64" profile run.toml --predict learned/model.json --set 'train.dtype="float64"'
refuses "no measurements" "first-16.json" bench latency --from nowhere
finish "latencies learned and predicted"
