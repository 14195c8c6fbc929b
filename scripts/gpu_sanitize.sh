#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: passes of `tiny` and of two layers of each Qwen2 preset under compute-sanitizer,
# for memory errors and for wrong use of barriers. usage: scripts/gpu_sanitize.sh  (some 20 s; exit code 1 on any error)
#
# Not racecheck: it does not follow mbarriers, which order every bulk copy (docs/kernels.md). The gate's 1,000 equal
# repeats stand for it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if ! sanitizer=$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v compute-sanitizer); then
  echo "compute-sanitizer is neither on PATH nor in ${CUDA_HOME:-/usr/local/cuda}/bin: install the CUDA toolkit" >&2
  exit 1
fi

failed=0
for tool in memcheck synccheck; do
  # Failed API calls are no errors here: cuda-bindings asks the driver for every entry point that it knows of, and
  # is told which of them this driver lacks.
  if "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 1 \
    "$PYTHON" -m pytest -q -p no:cacheprovider test/engine_cuda/test_on_device.py -k "permuting or cut_off"; then
    echo "$tool: no errors"
  else
    echo "$tool: FAILED"
    failed=1
  fi
done
exit "$failed"
