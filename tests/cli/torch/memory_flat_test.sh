#!/usr/bin/env bash
# Case "memory grows with steps": resident size at step 500 within 2% of that at step 50.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkfifo lines

# flat SCHEDULE
flat() {
  local at50='' at500='' line program
  "$MILLRACE" train run.toml --set "parallel.schedule=$1" --set parallel.stages=2 --set train.epochs=60 \
    --set model.width=64 --run-dir "run-$1" --json > lines 2> err &
  program=$!
  while read -r line; do
    case $line in
      *'"step": 50,'*) at50=$(awk '/^VmRSS/ { print $2 }' /proc/$program/status 2> /dev/null) ;;
      *'"step": 500,'*) at500=$(awk '/^VmRSS/ { print $2 }' /proc/$program/status 2> /dev/null) ;;
    esac
  done < lines
  wait $program || complain "$1: $(cat err)"
  [[ -n $at50 && -n $at500 ]] || { complain "$1: no resident size was read"; return; }
  ((at500 * 100 <= at50 * 102)) || complain "$1: $at50 kB at step 50, $at500 kB at step 500"
  echo "$1: $at50 kB at step 50, $at500 kB at step 500"
}

flat 1f1b
flat pipedream
finish "memory stays flat"
