#!/usr/bin/env bash
# Builds Horovod and BytePS with NCCL, and checks what can be checked without a GPU: that they can
# be imported, what they want of NCCL and CUDA, where they look for it, and for which GPUs the
# kernels are compiled. Writes patches/gpu_builds.txt. CI has no time for it: run it for each change
# of a patch.
#
#   scripts/check_gpu_builds.sh [FOLDER]     ten minutes and 5 GB, in FOLDER (default: a new one)
set -euo pipefail

SCRIPTS=$(cd "$(dirname "$0")" && pwd)
FOLDER=$(realpath -m -- "${1:-$(mktemp -d)}")
export OOODIST_VENV=$FOLDER/venv OOODIST_WHEEL_CACHE=$FOLDER/wheels
# shellcheck source=scripts/environment.sh
source "$SCRIPTS/environment.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi
REPORT=$ROOT/patches/gpu_builds.txt

rm -rf "$OOODIST_WHEEL_CACHE"
make_environment gpu
bash "$SCRIPTS/install_engines.sh" --gpu horovod byteps | tee "$FOLDER/said"

library() {
  "$VENV/bin/python" -c "
from pathlib import Path
import $1.tensorflow as engine
print(*Path(engine.__file__).parent.glob('*.so'))" 2>/dev/null
}

{
  echo "Written by scripts/check_gpu_builds.sh on $(date +%F), without a GPU."
  echo
  grep -E ': (ready|built)' "$FOLDER/said"
  for engine in horovod byteps; do
    file=$(library $engine)
    echo
    echo "$engine/tensorflow/$(basename "$file")"
    echo "wants of NCCL: $(nm -D --undefined-only "$file" | grep -o 'nccl[A-Z][A-Za-z]*' | xargs)"
    echo "wants of CUDA: $(nm -D --undefined-only "$file" | grep -o 'cuda[A-Z][A-Za-z]*' | xargs)"
    echo "looks in: $(readelf -d "$file" | sed -n 's/.*runpath: \[\(.*\)\]/\1/p')"
    "$VENV/bin/python" -m ooodist.install_engines.fatbinary --list "$file"
  done
  echo
  echo "The logs end with"
  for log in "$OOODIST_WHEEL_CACHE"/logs/*-gpu.log; do
    echo
    echo "$(basename "$log"):"
    grep -E '^ *(-- Found NCCL|Successfully (built|installed))|all sums are right' "$log"
  done
} | sed "s|$FOLDER|FOLDER|g" | tee "$REPORT"
