#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: check the CUDA engine against the reference, then measure it into a record.
# usage: scripts/gpu_check.sh [RECORD.json]       (about 4 minutes with 20,000 passes; PASSES=4000 for fewer)
set -euo pipefail
cd "$(dirname "$0")/.."
record=${1:-docs/benchmarks/$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z_').json}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python3 -m pytest -q test/engine_cuda
python3 -m vla_edge_ros.engine.cuda.benchmark --passes "${PASSES:-20000}" --json "$record"
echo "written: $record"
