#!/usr/bin/env bash
# A run over two hosts, which are two network namespaces that a shaped link joins, ends with the very
# weights of the same run over threads: on every engine, and on Gloo under a rule with a server. Skipped
# without the right to make namespaces.
set -uo pipefail
source "$(dirname "$0")/common.sh"

weights() {
  echo "$work/$1/checkpoints/$(ls "$work/$1/checkpoints" | grep step | tail -1)/tensors.safetensors"
}

for rule in bsp server-sync; do
  run=(--set parallel.plan=data-parallel --set parallel.workers=2 --set parallel.stages=1
    --set parallel.replicas=2 --set parallel.rule="$rule")
  "$MILLRACE" train "$config" "${run[@]}" --run-dir "$work/$rule" > "$work/out" 2>&1 ||
    complain "threads, $rule: $(cat "$work/out")"
  for engine in $([[ $rule == bsp ]] && engines || echo gloo); do
    name=$rule-$engine
    ENGINE=$engine bash bench/two_hosts.sh 1gbit "$config" "${run[@]}" --run-dir "$work/$name" > "$work/out" 2>&1
    status=$?
    if ((status == 77)); then
      echo "skipped: no right to make network namespaces"
      exit 77
    fi
    ((status == 0)) || complain "$name: status $status: $(cat "$work/out")"
    cmp -s "$(weights "$name")" "$(weights "$rule")" || complain "$name: other weights than over threads"
    check_nobody_left "$name"
  done
done

exit $((failed > 0))
