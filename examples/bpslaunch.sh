#!/usr/bin/env bash
# A job of two workers, a server and a scheduler by BytePS's own launcher, all on this machine; with
# several hosts, each process is started on its own. Arguments are the workers' command:
#   examples/bpslaunch.sh python examples/two_lines.py
set -euo pipefail
export DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1
export DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=${DMLC_PS_ROOT_PORT:-9123} # of the scheduler
sockets=$(mktemp -d) # only where workers share a host
# A worker that fails would leave the others waiting.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$sockets"' EXIT

DMLC_ROLE=scheduler bpslaunch &
DMLC_ROLE=server bpslaunch &
DMLC_ROLE=worker DMLC_WORKER_ID=1 BYTEPS_SOCKET_PATH=$sockets bpslaunch "$@" &
other=$!
DMLC_ROLE=worker DMLC_WORKER_ID=0 bpslaunch "$@"
wait $other
wait # for scheduler and server, which end with the workers
