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
  ((filled < 185)) || [[ ! -e disk/run ]] || complain "$filled kB taken: half a run folder stayed"
done
umount disk
finish "a full disk is reported"
