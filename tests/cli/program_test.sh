#!/usr/bin/env bash
# The light program as a process: what it links, what it does with its streams, and how it becomes
# millrace-torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# Names only: a path or a load address may hold any of these words by chance ("c10" is hexadecimal).
linked=$(ldd "$MILLRACE" | awk '{ print $1 }')
! grep -qE '(^|/)lib(torch|c10|openblas|gomp|mpi)' <<< "$linked" || fail "millrace links a library of the other half: $linked"

# Full disk, closed reader.
if [[ -w /dev/full ]]; then
  status=0
  "$MILLRACE" list > /dev/full 2> "$work/err" || status=$?
  [[ $status == 1 ]] || fail "full disk: status $status"
  [[ $(wc -l < "$work/err") == 1 ]] || fail "full disk: $(cat "$work/err")"
fi
set +o pipefail
for _ in 1 2 3; do
  "$MILLRACE" schedule --name 1f1b --ranks 64 --microbatches 64 2> "$work/err" | head -n 1 > /dev/null
  status=${PIPESTATUS[0]}
  [[ $status == 0 && ! -s $work/err ]] || fail "closed reader: status $status, $(cat "$work/err")"
done
set -o pipefail

# Files that cannot be written.
status=0
"$MILLRACE" plan examples/profile.json --cluster examples/cluster.toml --straight -o "$work/no/such/plan.json" > /dev/null 2> "$work/err" || status=$?
[[ $status == 2 && $(wc -l < "$work/err") == 1 ]] || fail "unwritable plan: status $status, $(cat "$work/err")"

# The examples, as the help shows them.
"$MILLRACE" plan examples/profile.json --cluster examples/cluster.toml --straight -o "$work/plan.json" > "$work/plan.txt"
grep -q 'plain data parallel' "$work/plan.txt" || fail "no comparison with plain data parallel"
"$MILLRACE" simulate "$work/plan.json" --profile examples/profile.json --cluster examples/cluster.toml > "$work/simulate.txt"
grep -qE '^step +[0-9.]+ ms, the steady period' "$work/simulate.txt" || fail "$(cat "$work/simulate.txt")"
"$MILLRACE" schedule "$work/plan.json" --draw svg -o "$work/plan.svg" > /dev/null
grep -q '<svg' "$work/plan.svg" || fail "no picture"

# The pictures of the docs are the program's.
mkdir "$work/images"
scripts/draw_schedules.sh "$MILLRACE" "$work/images"
for picture in "$work"/images/*.svg; do
  cmp "$picture" "docs/images/${picture##*/}" || fail "docs/images/${picture##*/} is old; run scripts/draw_schedules.sh"
done
"$MILLRACE" plan examples/profile.json --cluster examples/cluster.toml --straight --json 2> /dev/null > "$work/printed.json"
"$MILLRACE" simulate "$work/printed.json" --profile examples/profile.json --cluster examples/cluster.toml > "$work/again.txt"
cmp "$work/simulate.txt" "$work/again.txt" || fail "the printed plan is another than the written one"

# Without millrace-torch: how to build it. With one: the same arguments and the thread variables.
cp "$MILLRACE" "$work/millrace"
status=0
"$work/millrace" doctor > "$work/out" 2> "$work/err" || status=$?
[[ $status == 2 ]] || fail "no millrace-torch: status $status"
grep -q 'DMILLRACE_TORCH=ON' "$work/err" || fail "no millrace-torch: $(cat "$work/err")"
cat > "$work/millrace-torch" << 'END'
#!/bin/sh
echo "$OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS $OMP_WAIT_POLICY: $*"
exit 7
END
chmod +x "$work/millrace-torch"
started() {
  local status=0
  "$@" > "$work/out" || status=$?
  [[ $status == 7 ]] || fail "status of millrace-torch was not passed on: $status"
  cat "$work/out"
}
unset OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS OMP_WAIT_POLICY
seen=$(started "$work/millrace" train tests/cli/data/run.toml --set train.epochs=2)
[[ $seen == "1 1 1 passive: train tests/cli/data/run.toml --set train.epochs=2" ]] || fail "$seen"
seen=$(OMP_NUM_THREADS=3 OMP_WAIT_POLICY=active started "$work/millrace" bench overhead)
[[ $seen == "3 1 1 active: bench overhead" ]] || fail "what the user set was lost: $seen"

# Several processes: each knows its place, what the others print has their name, and the first that
# ends badly ends all with one line.
cat > "$work/millrace-torch" << 'END'
#!/bin/sh
echo "$MILLRACE_PROCESS of $MILLRACE_PROCESSES by $MILLRACE_ENGINE, $OMP_NUM_THREADS thread: $*"
[ "$MILLRACE_PROCESS" != "${FAILS:-none}" ] || exit 3
END
"$work/millrace" train tests/cli/data/run.toml -n 2 --processes 2 > "$work/out" 2> "$work/err" || fail "two processes: $(cat "$work/err")"
words="of 2 by gloo, 1 thread: train tests/cli/data/run.toml -n 2 --processes 2"
[[ $(cat "$work/out") == "0 $words" && $(cat "$work/err") == "process 1: 1 $words" ]] || fail "two processes: $(cat "$work/out" "$work/err")"
status=0
FAILS=1 "$work/millrace" train tests/cli/data/run.toml -n 2 --processes 2 > "$work/out" 2> "$work/err" || status=$?
[[ $status == 1 ]] || fail "a failed process: status $status"
grep -qE '^millrace: process 1 \(pid [0-9]+, host .*\) ended with status 3' "$work/err" || fail "a failed process: $(cat "$work/err")"
# Within a world it starts none.
seen=$(RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=4000 "$work/millrace" train tests/cli/data/run.toml --processes 2)
[[ $seen == " of  by , 1 thread: train tests/cli/data/run.toml --processes 2" ]] || fail "under torchrun: $seen"

# A wrong file is refused before that program is started.
status=0
"$work/millrace" train tests/cli/data/cluster.toml > "$work/out" 2> "$work/err" || status=$?
[[ $status == 2 && ! -s $work/out ]] || fail "a wrong run.toml started millrace-torch"

echo "the program behaves"
