#!/usr/bin/env bash
# Watch the node move a simulated arm: bash scripts/demo.sh [--instruction TEXT --task NAME --seconds N]
# or work on a camera recording: bash scripts/demo.sh --bag PATH [--topic NAME --seconds N --policy NAME]
# Makes .venv on the first run; needs Python 3.10 to 3.13 and no ROS installation.
set -euo pipefail

# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare ros simulation
exec vla-edge demo "$@"
