#!/usr/bin/env bash
# Two processes of a run as on two hosts: in two network namespaces that a link of a set rate joins.
#
#   bench/two_hosts.sh RATE RUN.toml [options of `millrace train`]
#   bench/two_hosts.sh 100mbit examples/slow_link.toml --set parallel.plan=data-parallel --set parallel.stages=1
#   ENGINE=mpi bench/two_hosts.sh 1gbit examples/slow_link.toml
#
# RATE as tc(8) writes it: 1gbit, 100mbit. Prints what process 0 prints. Needs root (ip, tc), else
# ends with status 77; the namespaces are removed whatever happens. MILLRACE names the program (default:
# build/release/bin/millrace), ENGINE what joins the processes: gloo (default) or mpi.
set -euo pipefail

if (($# < 2)); then
  sed -n '2,11s/^# \{0,1\}//p' "$0"
  exit 2
fi
rate=$1
config=$2
shift 2
millrace=${MILLRACE:-build/release/bin/millrace}

# Names of this run alone, so that two runs at once do not meet.
left=millrace-$$-a
right=millrace-$$-b
clean_up() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2> /dev/null || true
  wait 2> /dev/null || true
  ip netns del "$left" 2> /dev/null || true
  ip netns del "$right" 2> /dev/null || true
}
trap clean_up EXIT

if ! ip netns add "$left" 2> /dev/null; then
  echo "two_hosts: skipped: no right to make network namespaces" >&2
  exit 77
fi
ip netns add "$right"
ip link add "va$$" netns "$left" type veth peer name "vb$$" netns "$right"
ip -n "$left" addr add 10.77.0.1/24 dev "va$$"
ip -n "$right" addr add 10.77.0.2/24 dev "vb$$"
for end in "$left va$$" "$right vb$$"; do
  read -r space device <<< "$end"
  ip -n "$space" link set lo up
  # Packets no larger than the bucket, and a bucket that holds no more than a fraction of a message:
  # larger packets would be cut to 1500 bytes one by one, and what a bucket holds passes at once.
  ip -n "$space" link set "$device" gso_max_size 16384
  ip -n "$space" link set "$device" up
  tc -n "$space" qdisc add dev "$device" root tbf rate "$rate" burst 32kb latency 50ms
done

if [[ ${ENGINE:-gloo} == mpi ]]; then
  # What mpirun takes for ssh: the other host is the other namespace.
  agent=$(mktemp)
  printf '#!/bin/bash\nshift\nexec ip netns exec %s unshare --uts sh -c "hostname %s; $*"\n' \
    "$right" "$right" > "$agent"
  chmod +x "$agent"
  network=10.77.0.0/24
  ip netns exec "$left" mpirun --allow-run-as-root --bind-to none -n 2 -H 10.77.0.1:1,10.77.0.2:1 \
    --mca plm_rsh_agent "$agent" --mca pml ob1 --mca btl tcp,self \
    --mca btl_tcp_if_include "$network" --mca oob_tcp_if_include "$network" \
    "$millrace" train "$config" --engine mpi "$@"
  rm -f "$agent"
  exit
fi
export WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 LOCAL_RANK=0
export TORCHELASTIC_RUN_ID=two-hosts-$$
RANK=1 ip netns exec "$right" "$millrace" train "$config" "$@" > /dev/null 2> >(sed 's/^/process 1: /' >&2) &
RANK=0 ip netns exec "$left" "$millrace" train "$config" "$@"
wait
