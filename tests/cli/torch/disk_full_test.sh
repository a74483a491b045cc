#!/usr/bin/env bash
# A full disk at several moments: status 1, one line, nothing half-written.
self=$(realpath "${BASH_SOURCE[0]}")
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir disk
if [[ ${1:-} != inside ]]; then
  if ! unshare -m true 2> /dev/null; then
    echo "skipped: this user may not mount"
    exit 0
  fi
  unshare -m bash "$self" inside
  exit
fi
if ! mount -t tmpfs -o size=200k none disk 2> /dev/null; then
  echo "skipped: this user may not mount"
  exit 0
fi

for filled in 0 100 185; do
  rm -rf disk/*
  head -c "${filled}k" /dev/zero > disk/filler
  "$MILLRACE" train run.toml --set train.epochs=3 --run-dir disk/run > out 2> err
  status=$?
  [[ $status == 1 ]] || complain "$filled kB taken: status $status, expected 1"
  [[ $(wc -l < err) == 1 ]] || complain "$filled kB taken: expected one line, found: $(cat err)"
  grep -q '^millrace: disk/run.*No space left' err || complain "$filled kB taken: $(cat err)"
  [[ -z $(find disk -name '*.tmp.*' -o -name '.step-*') ]] || complain "$filled kB taken: left $(find disk)"
  # Whatever was saved before still loads.
  [[ ! -e disk/run/checkpoints/latest ]] || "$MILLRACE" eval disk/run > out 2> err ||
    complain "$filled kB taken: the last checkpoint does not load: $(cat err)"
  ((filled < 185)) || [[ ! -e disk/run ]] || complain "$filled kB taken: half a run folder stayed"
done

# Checkpoints fill the disk: the run stops with an error, and goes on once there is space.
rm -rf disk/*
"$MILLRACE" train run.toml --set train.epochs=1000 --set train.keep_checkpoints=0 --run-dir disk/run > out 2> err
[[ $? == 1 ]] || complain "checkpoints without end: expected status 1"
grep -q '^millrace: disk/run/.*No space left' err || complain "checkpoints without end: $(cat err)"
latest=disk/run/checkpoints/$(cat disk/run/checkpoints/latest)
"$MILLRACE" eval disk/run > out 2> err || complain "the checkpoint before a full disk does not load: $(cat err)"
find disk/run/checkpoints -maxdepth 1 -name 'step-*' ! -path "$latest" -exec rm -r {} +
"$MILLRACE" train run.toml --set train.max_steps=$((10#${latest##*-} + 5)) --set train.epochs=1000 \
  --resume "$latest" --run-dir resumed > out 2> err || complain "resume after a full disk: $(cat err)"
umount disk
finish "a full disk is reported"
