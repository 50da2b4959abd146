#!/bin/sh
# Generates client/megalith/protos from protos/ into the folder given (default: in place).
set -eu
out=${1:-client}
mkdir -p "$out/megalith/protos"
rm -f "$out"/megalith/protos/*_pb2*.py "$out"/megalith/protos/*_pb2*.pyi
.venv/bin/python -m grpc_tools.protoc -Imegalith/protos=protos --python_out="$out" --grpc_python_out="$out" \
  --plugin=protoc-gen-mypy=.venv/bin/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=.venv/bin/protoc-gen-mypy_grpc \
  --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" protos/*.proto
