#!/usr/bin/env bash
# Runs ooodist on this host's GPU, in some ten minutes, and writes down what it saw. CI has no GPU.
#
#   scripts/check_gpu.sh              all parts
#   scripts/check_gpu.sh PART...      some of: machine train equal plan pipeline workers overhead
#                                     one_device tests
#
# Needs Python with ooodist's extras gpu, mpi and dev (PYTHON; by default .venv's), and mpirun.
# Each part's log and results are in OUTPUT (default: runs/check_gpu); report.md sums them up. A
# part that fails does not stop the others; the exit status then is 1.
set -uo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

cd "$ROOT"
PYTHON=${PYTHON:-$VENV/bin/python}
OUTPUT=${OUTPUT:-runs/check_gpu}
mkdir -p "$OUTPUT"
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=1
export TF_FORCE_GPU_ALLOW_GROWTH=true # several processes share the GPU
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# What is run, and the seconds it may take.
machine() {
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
  TF_CPP_MIN_LOG_LEVEL=0 "$PYTHON" expr/one_device/machine.py # it names missing libraries
}
train() {
  "$PYTHON" -m ooodist.train --config expr/quickstart/config.yaml --set epochs=3 \
    --output "$OUTPUT/train"
}
equal() {
  "$PYTHON" expr/one_device/run.py --ways graph two_streams --deterministic --turns 1 \
    --rows densenet_12:16 mobilenet_v3_0.5:8 resnet50:8 bert_12:2 lstm:8 --output "$OUTPUT/equal"
}
plan() {
  "$PYTHON" -m ooodist.plan --set 'model={name: resnet50}' --set batch=32 --profile \
    --set 'data={name: synthetic, input_shape: [224, 224, 3], num_classes: 100, num_samples: 640}' \
    --set 'optimizer={name: sgd, learning_rate: 0.1}' --workers 8 --bandwidth 10Gbit \
    --output "$OUTPUT/plan"
}
pipeline() { # both stages on the first GPU
  CUDA_VISIBLE_DEVICES=0 mpirun -np 2 --oversubscribe "$PYTHON" -m ooodist.train \
    --set 'model={name: resnet20}' --set 'data={name: digits}' --set batch=32 --set epochs=2 \
    --set 'optimizer={name: sgd, learning_rate: 0.05}' --output "$OUTPUT/pipeline" \
    --set 'parallel={pipeline: 2, microbatches: 4, schedule: zb_h1}'
}
workers() { # both on the first GPU
  OOODIST_COLLECTIVE=ring CUDA_VISIBLE_DEVICES=0 \
    "$PYTHON" launch/local.py -np 2 --engine collective \
    --log-dir "$OUTPUT/workers_logs" -- "$PYTHON" -m ooodist.train \
    --config expr/quickstart/config.yaml --set epochs=1 --output "$OUTPUT/workers"
}
overhead() {
  "$PYTHON" expr/overhead/run.py --models resnet20 resnet50 bert_4 --blocks 6 --steps 20 \
    --output "$OUTPUT/overhead.csv"
}
one_device() {
  "$PYTHON" expr/one_device/run.py --output "$OUTPUT/one_device"
}
tests() {
  "$PYTHON" -m pytest --gpu -v -n 8 -p no:cacheprovider --maxfail=60 --durations=5 \
    tests/graph tests/step tests/profiler tests/elastic/selection tests/engines/test_devices.py \
    tests/trainer/test_fit.py tests/job/test_own_steps.py tests/pipeline/layers
}
declare -A SECONDS_OF=([machine]=120 [train]=120 [equal]=240 [plan]=150 [pipeline]=150
  [workers]=90 [overhead]=240 [one_device]=400 [tests]=300)
ALL=(machine train equal plan pipeline workers overhead one_device tests)

parts=("$@")
[ $# -gt 0 ] || parts=("${ALL[@]}")
failed=0
export PYTHON OUTPUT ROOT
for part in "${parts[@]}"; do
  [ -n "${SECONDS_OF[$part]:-}" ] || fail "'$part' is no part; choose from: ${ALL[*]}"
  began=$SECONDS
  # In a process group of its own, so that nothing is left of a part that takes too long.
  export -f "$part"
  timeout -k 10 "${SECONDS_OF[$part]}" bash -c "$part" >"$OUTPUT/$part.log" 2>&1
  status=$?
  [ $status = 0 ] || failed=1
  result=passed
  [ $status = 0 ] || result="failed ($status)"
  echo "| $part | $result | $((SECONDS - began)) s |" | tee -a "$OUTPUT/report.md"
done
exit $failed
