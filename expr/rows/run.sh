#!/usr/bin/env bash
# Measures rows against tables on this machine and on an emulated network; writes results.csv. Root.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=expr/rows/results.csv
python=${PYTHON:-python}
export PYTHONPATH=$PWD CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=2
{
    echo "engine,network,rows,turn,ms_per_step"
    for engine in ${ENGINES:-collective horovod}; do
        "$python" launch/local.py -np 2 --engine "$engine" -- \
            "$python" expr/rows/worker.py --network local
        "$python" launch/netlab.py -np 2 --engine "$engine" --rate 1Gbit -- \
            "$python" expr/rows/worker.py --network 1Gbit
    done | tee /dev/stderr | sed -n 's/^\[0\] csv,//p'
} > "$out.new"
mv "$out.new" "$out"
