#!/usr/bin/env bash
# Generates ooodist/zoo/service/zoo_pb2.py and zoo_pb2.pyi from zoo.proto beside them, with
# grpcio-tools in an environment of its own, which is deleted.
#
#   scripts/proto.sh
#
# Generated code runs with the protobuf and grpcio that it was generated for, and later ones. So the
# version of grpcio-tools is the oldest that the extra zoo of pyproject.toml allows: 1.74.0 generates
# for protobuf 6.31.1, which TensorFlow 2.21 asks for at least and TensorFlow 2.20 can use, too.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

GRPCIO_TOOLS=1.74.0

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

python=$(find_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "grpcio-tools==$GRPCIO_TOOLS" || fail "pip failed; see above"
cd "$ROOT"
"$folder/venv/bin/python" -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
  ooodist/zoo/service/zoo.proto
git diff --stat -- ooodist/zoo/service
