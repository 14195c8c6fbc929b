#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: check the CUDA engine, gate its arithmetic, then measure it into a record.
# usage: scripts/gpu_check.sh [RECORD.json]       (about 7 minutes with 20,000 passes; PASSES=4000 for fewer)
#
# Everything runs, whatever fails before it; the exit code is 1 if anything failed. The gate's report lies beside
# the record, and its token agreement in the record, if both are of the same sources.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
record=${1:-docs/benchmarks/$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z_').json}
gate=${record%.json}_gate.json
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=()

check() {
  echo "== $*"
  "$@" || failed+=("$*")
}

# racecheck sees shared memory only; the tagged words in global memory are the gate's 1,000 equal repeats to judge.
# Failed API calls are left out: cuda-bindings asks the driver for every entry point that it knows of, and is told
# which of them it lacks.
sanitize() {
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer) || return 1
  "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 1 \
    python3 -m pytest -q -p no:cacheprovider test/engine_cuda/test_on_device.py -k "permuting or cut_off"
}

copy_agreement() {
  python3 - "$record" "$gate" <<'PYTHON'
import json, pathlib, sys

record, gate = (json.loads(pathlib.Path(path).read_text()) for path in sys.argv[1:])
if record["sources_sha256"] != gate["sources_sha256"]:
    sys.exit("the record and the gate's report are of different sources")
record["token_agreement"] = gate["token_agreement"]
pathlib.Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
PYTHON
}

check python3 -m pytest -q test/engine_cuda
check sanitize memcheck
check sanitize racecheck
check python3 -m vla_edge_ros.cli gate --backend cuda --json "$gate"
check python3 -m vla_edge_ros.engine.cuda.benchmark --passes "${PASSES:-20000}" --json "$record"
check copy_agreement
echo "written: $record, $gate"
[ ${#failed[@]} -eq 0 ] || {
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
}
