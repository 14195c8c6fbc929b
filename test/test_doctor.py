"""`vla-edge doctor`: each row says what was found and what to do, the exit code whether it will work."""

import argparse
import ctypes
import json
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from vla_edge_ros.evaluation import doctor
from vla_edge_ros.evaluation.doctor import FAIL, OK, WARN, Check, probe
from vla_edge_ros.parameters import defaults, validate_all

ROOT = Path(__file__).resolve().parents[1]
OLD_NAME, NEW_NAME = "FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"


def run(*arguments):
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(arguments))


def test_this_machine_is_examined_from_end_to_end(capsys):
    code = run(
        "--seconds",
        "0.3",
        "--json",
        "--param",
        "engine.backend=fake",
        "--param",
        "engine.model=fake:service_ms=2",
    )
    report = json.loads(capsys.readouterr().out)
    checks = [Check(**fields) for fields in report["checks"]]
    names = [check.name for check in checks]
    has_gpu = next(check for check in checks if check.name == "GPU").level == OK
    assert len(set(names)) == len(names) == 15 + 5 * has_gpu + ("GPU memory" in names)
    assert {check.level for check in checks} <= {OK, WARN, FAIL}
    assert all(check.found for check in checks)
    assert all(check.advice for check in checks if check.level != OK)
    assert code == int(any(check.level == FAIL for check in checks))
    assert report["ok"] == (code == 0)
    assert " wake-ups (" in checks[-2].found
    assert "95 %" in checks[-1].found and "0.1 % takes 2,995 ticks: --seconds 101" in checks[-1].found


@pytest.mark.parametrize(
    ("levels", "code"), [([OK, OK], 0), ([OK, WARN], 0), ([FAIL, OK], 1)], ids=["ok", "warn", "fail"]
)
def test_only_a_failure_makes_the_exit_code_1(monkeypatch, capsys, levels, code):
    rows = [Check(f"thing {i}", level, "[found]", "do this") for i, level in enumerate(levels)]
    monkeypatch.setattr(doctor, "examine", lambda seconds, parameters: iter(rows))
    assert run() == code
    table = capsys.readouterr().out
    assert "thing 1" in table and "[found]" in table and levels[0] in table


def test_a_narrow_terminal_cuts_off_nothing_of_what_to_do(monkeypatch, capsys):
    path = "/etc/" + "security/" * 12 + "limits.conf"
    monkeypatch.setattr(
        doctor, "examine", lambda seconds, parameters: iter([Check("thing", WARN, "found", path)])
    )
    monkeypatch.setenv("COLUMNS", "80")
    run()
    cells = [line.split("│")[4] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert "".join(cell.strip() for cell in cells) == path


def test_a_line_for_the_shell_is_whole_however_narrow_the_terminal(monkeypatch, tmp_path, capsys):
    folder = tmp_path / ("a b " * 30)
    (folder / "config").mkdir(parents=True)
    (folder / "config/fastdds.xml").write_text("<dds/>")
    monkeypatch.setattr(doctor, "share_directory", lambda: folder)
    checks = [doctor.check_profile({}), doctor.check_ros(True, "rmw_cyclonedds_cpp")]
    monkeypatch.setattr(doctor, "examine", lambda seconds, parameters: iter(checks))
    monkeypatch.setenv("COLUMNS", "60")
    run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("export ")]
    script = "\n".join([*lines, f'test -f "${NEW_NAME}" && echo "$RMW_IMPLEMENTATION"'])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.stdout == "rmw_fastrtps_cpp\n"


def test_without_a_gpu_one_row_says_so(monkeypatch):
    def answer(code):
        return ("describe_gpu" not in code), "no NVIDIA driver"

    monkeypatch.setattr(doctor, "probe", answer)
    names = [check.name for check in doctor.examine(0, validate_all({}))]
    assert "GPU" in names
    assert not {"other GPU processes", "PyCUDA", "cuda-bindings", "nvcc", "CUDA engine"} & set(names)


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon", "1e9"])
def test_a_measuring_time_out_of_range_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        run("--seconds", seconds)
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9), FAIL), ((3, 10), OK), ((3, 13), OK), ((3, 14), WARN)], ids=str
)
def test_python_versions(version, level):
    assert doctor.check_python(version).level == level


def test_machines_and_cores():
    assert doctor.check_platform("aarch64", "6.1").level == OK
    assert doctor.check_platform("riscv64", "6.1").level == WARN
    assert doctor.check_cores(1).level == WARN
    assert doctor.check_cores(2).level == OK


def test_ros_is_needed_for_the_live_node_only():
    assert doctor.check_ros(True, "rmw_fastrtps_cpp").level == OK
    assert "RMW_IMPLEMENTATION" in doctor.check_ros(True, "rmw_cyclonedds_cpp").command
    missing = doctor.check_ros(False, "ModuleNotFoundError: No module named 'rclpy'")
    assert missing.level == WARN and "rclpy" in missing.found and "replay works" in missing.advice


@pytest.mark.parametrize(("name", "wanted"), [("jazzy", OLD_NAME), ("kilted", NEW_NAME), ("", NEW_NAME)])
def test_the_profile_is_advised_under_the_name_that_the_distribution_reads(name, wanted):
    check = doctor.check_profile({"ROS_DISTRO": name})
    assert (check.level, check.found) == (WARN, f"{wanted} is not set")
    assert check.command == f"export {wanted}={ROOT / 'config/fastdds.xml'}"


@pytest.mark.parametrize(
    ("name", "given"), [("jazzy", OLD_NAME), ("kilted", NEW_NAME), ("kilted", OLD_NAME)], ids=str
)
def test_a_profile_that_is_named_must_be_there(tmp_path, name, given):
    profile = tmp_path / "fastdds.xml"
    environment = {"ROS_DISTRO": name, given: str(profile)}
    check = doctor.check_profile(environment)
    assert (check.level, check.found) == (WARN, f"{given} names no file")
    profile.write_text("<dds/>")
    assert doctor.check_profile(environment).level == OK


def test_the_new_name_of_the_profile_says_nothing_to_an_old_distribution():
    environment = {"ROS_DISTRO": "jazzy", NEW_NAME: str(ROOT / "config/fastdds.xml")}
    assert doctor.check_profile(environment).found == f"{OLD_NAME} is not set"


def test_libraries(tmp_path):
    assert doctor.check_opencv(False, "ImportError: libGL.so.1").level == FAIL
    assert doctor.check_opencv(True, "4.10.0").level == OK
    without_bridge = doctor.check_cv_bridge(False, "crashes with signal 11")
    assert without_bridge.level == OK and "signal 11" in without_bridge.found
    assert doctor.check_atomics("libc.so.6", "aarch64").level == OK
    assert doctor.check_atomics("libnone.so.9", "x86_64").level == WARN
    assert doctor.check_atomics("libnone.so.9", "aarch64").level == FAIL
    assert doctor.check_shared_memory(tmp_path / "absent").level == WARN


@pytest.mark.parametrize(
    ("free_mib", "level"), [(0, FAIL), (0.9, FAIL), (1, WARN), (49.9, WARN), (50, OK), (64, OK)]
)
def test_shared_memory_is_judged_by_what_is_free(tmp_path, monkeypatch, free_mib, level):
    usage = SimpleNamespace(total=64 * 2**20, free=int(free_mib * 2**20))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    check = doctor.check_shared_memory(tmp_path)
    assert check.level == level
    assert check.found == f"{tmp_path} has {int(free_mib)} of 64 MiB free"


def test_real_time_limits_say_what_to_set():
    refused = doctor.check_priority(
        "SCHED_FIFO 50 refused (rtprio limit 0); add 'USER - rtprio 50' to limits"
    )
    assert (refused.level, refused.found) == (WARN, "SCHED_FIFO 50 refused (rtprio limit 0)")
    assert refused.advice.startswith("add 'USER - rtprio 50'")
    permitted = doctor.check_priority("")
    assert permitted.level == OK
    assert permitted.found == f"SCHED_FIFO {defaults()['control.priority'] + 1} permitted"
    assert doctor.check_memory_lock(8 * 2**20).level == WARN
    assert doctor.check_memory_lock(resource.RLIM_INFINITY).level == OK


@pytest.mark.parametrize(
    ("governors", "level"),
    [([], OK), (["performance"] * 2, OK), (["performance", "powersave"], WARN)],
    ids=["none", "performance", "one saves power"],
)
def test_every_core_must_run_at_full_speed(tmp_path, governors, level):
    for core, governor in enumerate(governors):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(governor + "\n")
    assert doctor.check_governors(tmp_path).level == level


def test_a_missing_gpu_is_a_warning_with_its_reason():
    for check in (
        doctor.check_gpu(False, "OSError: libcuda.so.1"),
        doctor.check_pycuda(False, "ModuleNotFoundError: No module named 'pycuda'"),
        doctor.check_bindings(False, "ModuleNotFoundError: No module named 'cuda'"),
        doctor.check_nvcc(False, "EngineError: nvcc was not found"),
        doctor.check_gpu_memory(False, "EngineError: needs 9000 MB"),
        doctor.check_cuda_engine(True, "no NVIDIA driver"),
        doctor.check_cuda_engine(False, "ImportError: numpy"),
    ):
        assert check.level == WARN and check.found and check.advice
    assert doctor.check_cuda_engine(True, "").level == OK


def test_the_account_of_the_gpu_is_looked_at_only_where_the_engine_can_run(monkeypatch):
    asked = []

    def probe_of(obstacle):
        def answer(code):
            asked.append(code)
            return True, obstacle if "cuda_obstacle" in code else "3412 MB"

        return answer

    for obstacle, has_account in (("no NVIDIA driver", False), ("", True)):
        monkeypatch.setattr(doctor, "probe", probe_of(obstacle))
        checks = {check.name: check for check in doctor.examine(0, validate_all({}))}
        assert ("GPU memory" in checks) == has_account
    assert checks["GPU memory"] == Check("GPU memory", OK, "3412 MB")


def test_a_probe_tells_success_failure_and_a_crash_apart():
    assert probe("print('noise'); print('4.2')") == (True, "4.2")
    assert probe("print('')") == (True, "")
    assert probe("import nothing_of_this_name") == (
        False,
        "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    )
    assert probe("import os; os.kill(os.getpid(), 11)") == (False, "crashes with signal 11")


class Driver:
    """Two devices of one name, under a driver for CUDA 12.4."""

    def __init__(self, status):
        self.cuInit = lambda flags: status

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = 2

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = 12040

    def cuDeviceGet(self, pointer, ordinal):
        pointer._obj.value = ordinal

    def cuDeviceGetName(self, buffer, size, device):
        buffer.value = b"Orin"[: size - 1]


def test_a_gpu_is_described_by_name_number_and_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(status=0))
    assert doctor.describe_gpu() == "2 x Orin, driver for CUDA 12.4"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(status=100))
    with pytest.raises(OSError, match="CUDA error 100"):
        doctor.describe_gpu()
