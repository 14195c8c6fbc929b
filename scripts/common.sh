# shellcheck shell=bash
# Sourced by the scripts beside it. `prepare EXTRA...` makes .venv with the package, its extras and what they
# need, once, and sets the variables that the ROS 2 wheels in it want.
#
# The environment stands alone: a sourced ROS distribution is left out, since two builds of rclpy in one process
# crash or, worse, half work. On a robot with ROS 2 nothing here is needed: colcon and ros2 launch do it all.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$(basename "$0"): $*"
  exit 1
}

prepare() {
  leave_sourced_ros
  local python
  python=$(find_python)
  make_environment "$python"
  local extra
  for extra in "$@"; do
    install_extra "$extra"
  done
  export PATH="$VENV/bin:$PATH"
  enter_ros
}

leave_sourced_ros() {
  unset PYTHONPATH PYTHONHOME
  [ -n "${ROS_DISTRO:-}" ] || return 0
  say "ROS 2 $ROS_DISTRO is sourced and left out here: this script uses the ROS 2 wheels in .venv"
  unset ROS_DISTRO ROS_VERSION ROS_PYTHON_VERSION LD_LIBRARY_PATH COLCON_PREFIX_PATH CMAKE_PREFIX_PATH
}

find_python() {
  local wanted=${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10} candidate
  for candidate in $wanted; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "needs Python 3.10 to 3.13 and found none (tried $wanted): sudo apt-get install python3, or set PYTHON"
}

make_environment() {
  local python=$1 version found
  [ "$(uname -m)" = x86_64 ] ||
    die "the ROS 2 wheels exist for x86-64 only and this is $(uname -m): build with colcon (README, On a robot)"
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if found=$("$VENV/bin/python" -c 'import sys, pip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    [ -z "${PYTHON:-}" ] || [ "$found" = "$version" ] ||
      die "PYTHON is $version and .venv holds Python $found: remove .venv first"
    return
  fi
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "Python's venv module is missing: sudo apt-get install $(venv_package "$python" "$version")"
  say "making .venv with Python $version"
  "$python" -m venv --clear "$VENV"
}

venv_package() {
  case $1 in
    python3 | /usr/bin/python3) echo python3-venv ;;
    *) echo "python$2-venv" ;;
  esac
}

# Installs the package with one extra, unless that was done with the same requirements before.
install_extra() {
  local extra=$1 stamp=$VENV/.installed-$1 requirements
  requirements=$(cat "$ROOT/setup.py" "$ROOT/pyproject.toml" | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" != "$requirements" ] || return 0
  say "installing into .venv: $(download_size "$extra")"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --editable "${ROOT}[$extra]" ||
    die "pip could not install the extra '$extra'; its message is above"
  printf '%s\n' "$requirements" >"$stamp"
}

# What `pip download` fetched and .venv then held, by `du -sm` (ros: x86-64, Python 3.11, 2026-11-29); the
# test extra varies too much with the index that PyTorch comes from.
download_size() {
  case $1 in
    ros) echo "ROS 2, NumPy, OpenCV, matplotlib, ... (about 170 MB to download, 625 MB on disk)" ;;
    simulation) echo "MuJoCo (about 30 MB to download)" ;;
    test)
      echo "PyTorch 2.13, transformers, pytest, ... (hundreds of MB to download, twice that and more on disk;" \
        "where pip finds only PyTorch's CUDA build, several GB: PIP_EXTRA_INDEX_URL with its CPU index saves that)"
      ;;
  esac
}

# The node may share its computer with a live robot: a domain of its own, and nothing leaves this computer.
enter_ros() {
  unset ROS_LOCALHOST_ONLY ROS_STATIC_PEERS ROS_DISCOVERY_SERVER
  export ROS_DOMAIN_ID=$((1 + $$ % 100))
  export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
  export AMENT_PREFIX_PATH=$VENV
  export RMW_IMPLEMENTATION=rmw_fastrtps_cpp
  # As large_image_variables in share.py has it: no ROS_DISTRO is set, and the wheels are Kilted's, which read
  # the new name first and warn where the old one is set.
  unset FASTRTPS_DEFAULT_PROFILES_FILE
  export FASTDDS_DEFAULT_PROFILES_FILE=$ROOT/config/fastdds.xml
}
