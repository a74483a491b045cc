#!/usr/bin/env bash
# What only the torch half can refuse: status 2, one line on stderr, no run folder.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# refused NAME PATTERN ARGUMENTS...: PATTERN is a grep -E expression that the line must match.
refused() {
  local name=$1 pattern=$2 status
  shift 2
  "$MILLRACE" "$@" > out 2> err
  status=$?
  [[ $status == 2 ]] || complain "$name: status $status, expected 2"
  [[ $(wc -l < err) == 1 ]] || complain "$name: expected one line on stderr, found: $(cat err)"
  grep -qE "^millrace: .*($pattern)" err || complain "$name: expected \"$pattern\" in: $(cat err)"
  [[ ! -e runs ]] || { complain "$name: left a run folder"; rm -rf runs; }
}

refused "more stages than layers" '7 stages for the 6 layers' train run.toml -n 7 --set parallel.stages=7
refused "samples without end" 'at most 1000000000' train run.toml --set data.samples=1000000000000000
refused "an unknown fault" 'expected `stash`' verify run.toml --break foo
refused "--steps 0" 'found `0`' verify run.toml --steps 0

plan_file="a \"quoted\" 'plan'.json"
"$MILLRACE" train run.toml --dry-run --json > "$plan_file" 2> err || complain "dry run: $(cat err)"
[[ ! -e runs ]] || complain "--dry-run made a run folder"
"$MILLRACE" train run.toml --plan "$plan_file" --run-dir run > out 2> err || complain "quotes in --plan: $(cat err)"
sed 's/"relu1"/"reluX"/' "$plan_file" > stranger.json
refused "a plan of another model" 'no layer `reluX`' train run.toml --plan stranger.json
refused "a folder with a run" 'holds a run already' train run.toml --run-dir run

# A truncated dataset.
mkdir data
printf '\0\0\10\3\0\0\0\12\0\0\0\34\0\0\0\34' | gzip -c |
  tee data/train-images-idx3-ubyte.gz > data/t10k-images-idx3-ubyte.gz
printf '\0\0\10\1\0\0\0\12\0\1\2\3\4\5\6\7\10\11' | gzip -c |
  tee data/train-labels-idx1-ubyte.gz > data/t10k-labels-idx1-ubyte.gz
printf '[model]\nname = "mlp"\n[data]\nname = "fashion-mnist"\npath = "data"\n[train]\nbatch = 20\n' > images.toml
refused "a truncated dataset" 'train-images.*truncated' train images.toml

# Checkpoints: each damage is said by resume, and the run folder stays as it was.
before=$(cat run/*.toml run/*.json run/metrics.jsonl | cksum)
resume() { refused "$1" "$2" train run.toml --resume run --set train.epochs=3 "${@:3}"; }
resume "another width" 'linear1.weight = float32 \[16, 16\]' --set model.width=8
resume "another dtype" 'this run has float64' --set train.dtype=float64
resume "momentum that was not saved" 'linear1.weight/velocity = nothing' --set train.momentum=0.9
resume "another batch" 'batch = 20' --set train.batch=10
newest=run/checkpoints/$(cat run/checkpoints/latest)
cp -r "$newest" sound
# damage NAME PATTERN FILE SED_EXPRESSION
damage() {
  sed -Ei "$4" "$newest/$3"
  ! cmp -s "sound/$3" "$newest/$3" || complain "$1: nothing was damaged"
  resume "$1" "$2"
  cp "sound/$3" "$newest/$3"
}
damage "a manifest of another epoch" 'cannot be step' manifest.json 's/"epoch": 2/"epoch": 1/'
damage "half a manifest" 'manifest.json:[0-9]+: not valid JSON' manifest.json '4,$d'
damage "a changed checksum" 'damaged' manifest.json '0,/"crc32": /s/"crc32": [0-9]+/"crc32": 7/'
truncate -s -1 "$newest/tensors.safetensors"
resume "a payload without its last byte" 'tensors.safetensors'
refused "eval of it" 'tensors.safetensors' eval run
size=$(stat -c %s sound/tensors.safetensors)
cp sound/tensors.safetensors "$newest/"
last=$(tail -c 1 sound/tensors.safetensors | od -An -tu1)
printf "$(printf '\\%03o' $((last ^ 4)))" | dd of="$newest/tensors.safetensors" bs=1 seek=$((size - 1)) conv=notrunc status=none
resume "one flipped bit" 'checksum'
[[ $(cat run/*.toml run/*.json run/metrics.jsonl | cksum) == "$before" ]] || complain "a refused resume changed the run folder"

finish "all refusals are right"
