#!/usr/bin/env bash
# Every check of the repository: lint, format, tests (real nodes over DDS on loopback) and the arithmetic gate.
# Makes .venv on the first run; needs Python 3.10 to 3.13 and no ROS installation.
set -euo pipefail

# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare ros simulation test
cd "$ROOT"

ruff check .
ruff format --check .
vla-edge gate
python -m pytest -q
