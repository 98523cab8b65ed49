#!/usr/bin/env bash
# Two hosts on one machine: two network namespaces joined by a link of a given rate. Needs root and
# Debian's iproute2.
#
#     bench/two_hosts_net.sh RATE COMMAND...     RATE as tc writes it: 200mbit, 1gbit
#
# runs the command with TROUPE_HOST_A and TROUPE_HOST_B set to ADDRESS@NAMESPACE, and removes the
# namespaces afterwards, also when interrupted. Other scripts source this file and call
# `two_hosts_up RATE`, which sets these variables and `two_hosts_namespaces`, then `two_hosts_down`.

two_hosts_namespaces=()

# The burst is small, so that what a pause between messages saves up does not count as speed: about
# 2 ms of the rate. With less, large packets are cut in software, which costs more processor time than
# TCP itself. reno: the machine's default may pace by timers of its own.
two_hosts_up() { # rate
  local tag=troupe-$$ burst=64kb namespace
  if [[ $1 == *gbit ]]; then
    burst=256kb
  fi
  two_hosts_namespaces=("$tag-a" "$tag-b")
  for namespace in "${two_hosts_namespaces[@]}"; do
    ip netns add "$namespace" || return 1
  done
  ip link add v0 netns "$tag-a" type veth peer name v0 netns "$tag-b" || return 1
  ip -n "$tag-a" addr add 10.77.0.1/24 dev v0 || return 1
  ip -n "$tag-b" addr add 10.77.0.2/24 dev v0 || return 1
  for namespace in "${two_hosts_namespaces[@]}"; do
    ip -n "$namespace" link set lo up || return 1
    ip -n "$namespace" link set v0 up || return 1
    ip netns exec "$namespace" sysctl -qw net.ipv4.tcp_congestion_control=reno || return 1
    tc -n "$namespace" qdisc add dev v0 root tbf rate "$1" burst $burst latency 50ms || return 1
  done
  export TROUPE_HOST_A=10.77.0.1@$tag-a TROUPE_HOST_B=10.77.0.2@$tag-b
}

two_hosts_down() {
  local namespace
  for namespace in "${two_hosts_namespaces[@]}"; do
    ip netns del "$namespace" 2>/dev/null
  done
  two_hosts_namespaces=()
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  if (($# < 2)) || [[ $1 == -* ]]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 2
  fi
  if ((EUID != 0)) || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
    echo "two_hosts_net.sh: needs root, and ip and tc (Debian: iproute2)" >&2
    exit 77
  fi
  trap two_hosts_down EXIT
  trap 'exit 130' INT TERM
  rate=$1
  shift
  two_hosts_up "$rate" || exit 77
  "$@"
fi
