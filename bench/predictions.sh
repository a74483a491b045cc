#!/usr/bin/env bash
# Predicted beside measured step times of whole runs: four models, each as a pipeline of two threads, as
# data parallel over two threads, and over two processes.
#
#   bench/predictions.sh [MODEL...]         models of: mlp lenet resnet18 gpt (default: all)
#
# Each run profiles anew, predicts, and trains STEPS steps (default 40); REPEATS of each (default 3), one
# after the other through all configurations. Prints each configuration's median of both, their
# difference, its range and the spread of the measured steps, then the median difference of all. MILLRACE
# names the program (default: build/release/bin/millrace).
set -euo pipefail
cd "$(dirname "$0")/.."
millrace=${MILLRACE:-build/release/bin/millrace}
repeats=${REPEATS:-3}
steps=${STEPS:-40}
models=("$@")
((${#models[@]} > 0)) || models=(mlp lenet resnet18 gpt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

config() {  # MODEL: its run but for [parallel]
  case $1 in
    mlp) printf '[model]\nname = "mlp"\ndepth = 6\nwidth = 1024\n' ;;
    lenet) printf '[model]\nname = "lenet"\n' ;;
    resnet18) printf '[model]\nname = "resnet18"\nwidth = 16\n' ;;
    gpt) printf '[model]\nname = "gpt"\nlayers = 4\nwidth = 128\nheads = 4\nlength = 64\n' ;;
    *) echo "predictions: no such model: $1" >&2; exit 2 ;;
  esac
  case $1 in
    gpt) printf '[data]\nname = "text"\npath = "/usr/share/common-licenses/GPL-3"\nlength = 64\n[train]\nbatch = 16\n' ;;
    *) printf '[data]\nname = "synthetic"\nsamples = 8192\n[train]\nbatch = 64\n' ;;
  esac
  printf 'epochs = 100\nmax_steps = %d\n' "$steps"
  printf '[parallel]\nworkers = 2\nschedule = "1f1b"\n'
}

run() {  # MODEL KIND [options]: appends "predicted measured", in seconds, to its file
  local name=$1-$2
  config "$1" > "$work/$1.toml"
  shift 2
  rm -rf "$work/run"
  "$millrace" train "$work/${name%%-*}.toml" --fresh --run-dir "$work/run" "$@" > "$work/out" 2>&1 ||
    { cat "$work/out" >&2; exit 1; }
  for trace in prediction trace; do
    grep -o '"step_s": [^,}]*' "$work/run/$trace.json" | head -1 | sed 's/.*: //'
  done | paste -sd ' ' >> "$work/$name.pairs"
}

for ((i = 0; i < repeats; ++i)); do
  for model in "${models[@]}"; do
    run "$model" pipeline --set parallel.stages=2 --set parallel.replicas=1 --set parallel.microbatches=4
    run "$model" threads --set parallel.plan=data-parallel --set parallel.rule=bsp
    run "$model" processes --set parallel.plan=data-parallel --set parallel.rule=bsp --processes 2 --engine gloo
  done
done

middle() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
printf '%-20s %12s %12s %11s   %s\n' configuration predicted measured difference "range, spread of measured"
for model in "${models[@]}"; do
  for kind in pipeline threads processes; do
    file=$work/$model-$kind.pairs
    predicted=$(cut -d' ' -f1 "$file" | middle)
    measured=$(cut -d' ' -f2 "$file" | middle)
    range=$(awk '{ d = 100 * ($2 / $1 - 1); if (NR == 1 || d < lo) lo = d; if (NR == 1 || d > hi) hi = d
                   if (NR == 1 || $2 < a) a = $2; if (NR == 1 || $2 > b) b = $2 }
                 END { printf "%+.1f%% to %+.1f%%, %.1f%%", lo, hi, 100 * (b / a - 1) }' "$file")
    awk -v n="$model $kind" -v p="$predicted" -v m="$measured" -v r="$range" 'BEGIN {
      printf "%-20s %9.2f ms %9.2f ms %+10.1f%%   %s\n", n, 1e3 * p, 1e3 * m, 100 * (m / p - 1), r }'
    awk -v p="$predicted" -v m="$measured" 'BEGIN { d = 100 * (m / p - 1); print d < 0 ? -d : d }' >> "$work/all"
  done
done
printf 'median difference of %d configurations: %.1f%%\n' "$(wc -l < "$work/all")" "$(middle < "$work/all")"
