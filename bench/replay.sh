#!/usr/bin/env bash
# What `millrace replay` says beside what runs then take.
#
#   bench/replay.sh step        two processes on this machine: replayed and measured step, clocks
#   bench/replay.sh link        an emulated link halved and doubled: asked of one run, then run
#   bench/replay.sh fusion      thresholds of gradient-flow: promised from one run, then run
#
# All three without an argument. MILLRACE names the program (default: build/release/bin/millrace), REPEATS
# how often each run is made (default 3; the median counts). Runs go to a folder that is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
millrace=${MILLRACE:-build/release/bin/millrace}
repeats=${REPEATS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# number FILE KEY: the first one at that key.
number() { grep -o "\"$2\": [^,}]*" "$1" | head -1 | sed 's/.*: //'; }
off() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%+.1f%%", 100 * (a / b - 1) }'; }
ms() { awk -v a="$1" 'BEGIN { printf "%.2f ms", 1e3 * a }'; }

# run NAME CONFIG [options]: trains into $work/NAME; REPEATS times, keeps the run of the median step.
run() {
  local name=$1 config=$2 i
  shift 2
  for ((i = 0; i < repeats; ++i)); do
    "$millrace" train "$config" --run-dir "$work/$name.$i" "$@" > "$work/out" 2>&1 ||
      { cat "$work/out"; exit 1; }
    printf '%s %s\n' "$(number "$work/$name.$i/trace.json" step_s)" "$work/$name.$i"
  done | sort -g > "$work/$name.steps"
  ln -sfn "$(sed -n "$(((repeats + 1) / 2))p" "$work/$name.steps" | cut -d' ' -f2)" "$work/$name"
}

# ask NAME [options]: replays it into $work/NAME.json.
ask() {
  local name=$1
  shift
  "$millrace" replay "$work/$name" "$@" --json > "$work/$name.json" 2> /dev/null
}
measured() { number "$work/$1/trace.json" step_s; }
answered() { grep -o "\"set\": \"$2\", \"step_s\": [^}]*" "$work/$1.json" | sed 's/.*: //'; }

step() {
  local plan
  for plan in pipeline parallel; do
    local settings=(--set parallel.stages=2 --set parallel.replicas=1)
    [[ $plan == pipeline ]] ||
      settings=(--set parallel.stages=1 --set parallel.replicas=2 --set parallel.schedule=1f1b
        --set parallel.rule=gradient-flow)
    run "$plan" examples/slow_link.toml --processes 2 --set train.max_steps=30 "${settings[@]}"
    ask "$plan"
    echo "$plan, two processes: measured $(ms "$(measured "$plan")"), replayed" \
      "$(ms "$(number "$work/$plan.json" replayed_step_s)")" \
      "($(off "$(number "$work/$plan.json" replayed_step_s)" "$(measured "$plan")")), from medians" \
      "$(ms "$(number "$work/$plan.json" typical_step_s)")"
    tr -d '\n' < "$work/$plan.json" | grep -o '"process": 1,[^}]*' |
      sed 's/"note.*//; s/^/  clock of /'
    echo
  done
}

link() {
  local factor
  for factor in 1 0.5 2; do
    sed "s/^bandwidth_bytes_per_s = 0.5e9/bandwidth_bytes_per_s = $(awk -v f="$factor" 'BEGIN { printf "%g", 0.5e9 * f }')/" \
      examples/emulated.toml > "$work/link-$factor.toml"
    run "link-$factor" "$work/link-$factor.toml" --set train.max_steps=60 --set emulate.time_scale=8
  done
  for factor in 0.5 2; do
    ask link-1 --set "link1-2.bandwidth=x$factor"
    local told
    told=$(answered link-1 "link1-2.bandwidth=x$factor")
    echo "link of examples/emulated.toml x$factor: asked $(ms "$told"), measured" \
      "$(ms "$(measured "link-$factor")") ($(off "$told" "$(measured "link-$factor")"));" \
      "as it was $(ms "$(measured link-1)")"
  done
}

# Reductions of many sizes tell most: the run that is asked sends every layer by itself.
fusion() {
  local kib
  run each examples/fusion.toml --set parallel.rule=gradient-flow --set rule.threshold_kib=0
  ask each --optimize
  local chosen promised
  chosen=$(grep -o 'rule.threshold_kib=[0-9]*' "$work/each.json" | head -1 | sed 's/.*=//')
  promised=$(tr -d '\n' < "$work/each.json" | grep -o '"kind": "gradient fusion".*' |
    grep -o '"step_s": [^,}]*' | head -1 | sed 's/.*: //')
  echo "asked of a run with threshold_kib=0, $(ms "$(measured each)") a step: take $chosen, $(ms "$promised")"
  for kib in 0 256 512 1024 2048 4096 8192 "$chosen"; do
    [[ -e $work/kib-$kib ]] ||
      run "kib-$kib" examples/fusion.toml --set parallel.rule=gradient-flow --set "rule.threshold_kib=$kib"
    echo "  threshold_kib=$kib: measured $(ms "$(measured "kib-$kib")")"
  done
  echo "promise against measured: $(off "$promised" "$(measured "kib-$chosen")")"
}

if (($# == 0)); then
  set -- step link fusion
fi
for what in "$@"; do
  case $what in
    step | link | fusion) "$what" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
