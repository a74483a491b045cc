#!/usr/bin/env bash
# `millrace doctor --measure` starts two processes by each engine, tells what messages between them
# cost, writes the cluster file of this process's own ranks, and leaves no process and no file.
set -uo pipefail
source "$(dirname "$0")/common.sh"

export TMPDIR=$work/tmp
mkdir "$TMPDIR"
"$MILLRACE" doctor --measure --json -o "$work/cluster.toml" > "$work/out" 2> "$work/err" ||
  complain "doctor --measure: $(tail -n 1 "$work/err")"
answer=$(tr -d ' \n' < "$work/out")
for key in gemm_flops_per_s copy_bytes_per_s copy_bytes_per_s_together; do
  grep -qE "\"$key\":[1-9]" <<< "$answer" || complain "no $key"
done
for engine in inproc $(engines); do
  grep -qE "\"$engine\":\{\"latency_s\":[0-9.e-]+,\"bandwidth_bytes_per_s\":[1-9]" <<< "$answer" ||
    complain "no link by $engine: $(grep -o '"links":.*' <<< "$answer" | head -c 300)"
done
grep -q "size = 2" "$work/cluster.toml" || complain "no level of two ranks in the cluster file"
rmdir "$TMPDIR" || complain "left in the temporary folder: $(ls "$TMPDIR")"
check_nobody_left "doctor"

# A process of a world that somebody else made measures that one, and one process speaks.
if engines | grep -q mpi; then
  as_root=()
  [[ $EUID == 0 ]] && as_root=(--allow-run-as-root)
  mpirun "${as_root[@]}" --oversubscribe -n 2 "$MILLRACE" doctor --measure -o "$work/world.toml" \
    > "$work/out" 2> "$work/err" || complain "under mpirun: $(tail -n 1 "$work/err")"
  [[ $(grep -c "2 processes by mpi" "$work/out") == 1 ]] || complain "under mpirun: $(cat "$work/out")"
  grep -q "size = 2" "$work/world.toml" || complain "no level of two processes"
fi
[[ $failed == 0 ]] && echo "doctor measures by every engine"
exit $((failed > 0))
