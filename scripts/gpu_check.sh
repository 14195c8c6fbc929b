#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, ROS 2 and the `gpu` and `test` extras: check the CUDA engine, measure it
# beside its peers, and put all figures into docs/benchmarks/DEVICE.json, each beside what it must be.
#
# usage: scripts/gpu_check.sh [OPTIONS] [tests|passes|peers|node|faults|gate|sizes|record ...]      (default: all)
#
# The steps may be run in several calls: each leaves a part in out/gpu_parts (--parts), and `record` merges the
# parts, on any machine with the same sources. --passes and --ticks make a shorter trial.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
prefix=$("$PYTHON" -c 'import sys; print(sys.prefix)')
export AMENT_PREFIX_PATH=${AMENT_PREFIX_PATH:-$prefix}
export RMW_IMPLEMENTATION=${RMW_IMPLEMENTATION:-rmw_fastrtps_cpp}
exec "$PYTHON" -m vla_edge_ros.evaluation.gpu_check "$@"
