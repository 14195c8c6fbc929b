"""The package as colcon, pip and rosdep see it, and the rules of its imports."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import setuptools

import vla_edge_ros
from vla_edge_ros.errors import UserError
from vla_edge_ros.share import share_directory

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "vla_edge_ros").rglob("*.py"))

ROS_PACKAGES = {
    "rclpy",
    "rcl_interfaces",
    "lifecycle_msgs",
    "sensor_msgs",
    "std_msgs",
    "std_srvs",
    "diagnostic_msgs",
    "trajectory_msgs",
    "builtin_interfaces",
    "rosgraph_msgs",
    "launch",
    "launch_ros",
    "cv_bridge",
}
"""Packages of Humble, Jazzy and Kilted, which rosdep knows by their own names."""

ROSDEP_KEYS = {
    "libatomic",
    "python3-numpy",
    "python3-opencv",
    "python3-yaml",
    "python3-matplotlib",
    "python3-rich",
    "python3-pytest",
    "python3-hypothesis",
}
"""In rosdep's base.yaml and python.yaml as this list was made, on 2026-11-29; rosdep is not asked here. What
has no key there (rosbags, ...) comes from pip."""

MODULES_OF = {"cv2": "opencv-python-headless", "yaml": "PyYAML", "PIL": "pillow"}
"""Modules whose project has another name; the others have the same."""

LAYERS = ["nodes", "simulation", "evaluation", "control", "engine", "memory", "actions", "perception"]
"""A module imports only from its own package or from those to its right."""

ROS_MESSAGES = ROS_PACKAGES - {"launch", "launch_ros", "cv_bridge"} | {"ament_index_python"}


@pytest.fixture(scope="module")
def setup_arguments():
    """What setup.py passes to setuptools."""
    captured = {}
    original, setuptools.setup = setuptools.setup, lambda **arguments: captured.update(arguments)
    here = os.getcwd()
    try:
        os.chdir(ROOT)
        runpy.run_path("setup.py")
    finally:
        os.chdir(here)
        setuptools.setup = original
    return captured


@pytest.fixture(scope="module")
def package_xml():
    return ElementTree.parse(ROOT / "package.xml").getroot()


def imports(path: Path) -> set[str]:
    """Names of all modules that a file imports, anywhere in it, and of what it takes from them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def foreign_modules(path: Path) -> set[str]:
    roots = {name.split(".")[0] for name in imports(path)}
    return roots - set(sys.stdlib_module_names) - {"vla_edge_ros"}


def projects(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~; ]", requirement)[0] for requirement in requirements}


def test_one_version_and_one_licence_everywhere(setup_arguments, package_xml):
    assert package_xml.get("format") == "3"
    assert package_xml.findtext("version") == setup_arguments["version"] == vla_edge_ros.__version__
    assert package_xml.findtext("license") == setup_arguments["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert all(f"\n   {section}. " in licence for section in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in licence


def test_package_xml_names_only_keys_that_were_looked_up(package_xml):
    named = {element.text for element in package_xml if element.tag.endswith("_depend")}
    assert named == ROS_PACKAGES | ROSDEP_KEYS
    assert package_xml.findtext("export/build_type") == "ament_python"


def test_everything_imported_is_a_declared_dependency(setup_arguments):
    declared = projects(setup_arguments["install_requires"])
    for extra in ("cluster", "evaluate", "gpu", "simulation", "test"):
        declared |= projects(setup_arguments["extras_require"][extra])
    allowed = {*declared, "cuda", *ROS_PACKAGES}
    undeclared = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        for name in foreign_modules(path)
        if MODULES_OF.get(name, name) not in allowed
    }
    assert not undeclared


def test_ros_is_imported_only_by_the_nodes():
    for path in SOURCES:
        if "nodes" not in path.parts:
            assert not foreign_modules(path) & ROS_MESSAGES, path.relative_to(ROOT)


def test_torch_is_out_of_reach_of_the_nodes():
    own = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    reached, waiting = set(), [name for name in own if name.startswith("vla_edge_ros.nodes.")]
    while waiting:
        name = waiting.pop()
        if name in own and name not in reached:
            reached.add(name)
            waiting += imports(own[name])
    wrong = {name for name in reached if foreign_modules(own[name]) & {"torch", "transformers"}}
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_from_itself_and_from_those_to_its_right(layer):
    forbidden = {f"vla_edge_ros.{left}" for left in LAYERS[: LAYERS.index(layer)]}
    for path in (ROOT / "vla_edge_ros" / layer).rglob("*.py"):
        wrong = {name for name in imports(path) if ".".join(name.split(".")[:2]) in forbidden}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(wrong)}"


def test_runtime_dependencies_have_a_lower_bound_and_extras_keep_ros_apart(setup_arguments):
    assert all(">=" in requirement for requirement in setup_arguments["install_requires"])
    assert not any(requirement.startswith("ros-") for requirement in setup_arguments["install_requires"])
    extras = setup_arguments["extras_require"]
    assert set(extras) == {"ros", "cluster", "evaluate", "gpu", "simulation", "training", "test"}
    assert "torch==2.13.0" in extras["test"]
    assert all(requirement.startswith("ros-") for requirement in extras["ros"])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A colcon workspace with a copy of this checkout, built."""
    folder = tmp_path_factory.mktemp("workspace")
    kept_out = shutil.ignore_patterns(".git", ".venv", "build", "install", "log", "out", "__pycache__")
    shutil.copytree(ROOT, folder / "src" / "vla_edge_ros", ignore=kept_out)
    built = colcon(folder, "build")
    assert built.returncode == 0, built.stderr
    return folder


def colcon(folder, *arguments):
    """Run colcon in a workspace, in the environment that holds rclpy."""
    return subprocess.run(
        [Path(sys.executable).with_name("colcon"), *arguments],
        cwd=folder,
        env=colcon_environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )


def colcon_environment(folder):
    return {**os.environ, "AMENT_PREFIX_PATH": sys.prefix, "COLCON_HOME": str(folder / "home")}


def test_colcon_installs_executables_and_shared_files(workspace):
    prefix = workspace / "install" / "vla_edge_ros"
    executables = {path.name for path in (prefix / "lib/vla_edge_ros").iterdir()}
    assert executables == {"vla_edge_node", "bag_camera", "simulation", "vla-edge"}
    assert (prefix / "share/ament_index/resource_index/packages/vla_edge_ros").is_file()
    for folder in ("launch", "config", "cuda", "recordings"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                installed = prefix / "share/vla_edge_ros" / path.relative_to(ROOT)
                assert installed.read_bytes() == path.read_bytes()

    ran = subprocess.run(
        [prefix / "lib/vla_edge_ros/vla-edge", "--version"],
        cwd=workspace,
        env={
            **colcon_environment(workspace),
            "PYTHONPATH": str(next(prefix.glob("lib/python*/site-packages"))),
        },
        capture_output=True,
        text=True,
    )
    assert ran.stdout == f"vla-edge {vla_edge_ros.__version__}\n", ran.stderr


def test_colcon_test_runs_the_tests_and_reports_a_failure(workspace):
    chosen = ("test", "--return-code-on-test-failure", "--pytest-args", "test/test_figures.py")
    passed = colcon(workspace, *chosen)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    result = colcon(workspace, "test-result")
    assert result.returncode == 0
    assert re.search(r"Summary: [1-9]\d* tests, 0 errors, 0 failures, 0 skipped", result.stdout), (
        result.stdout
    )

    figures = workspace / "src/vla_edge_ros/vla_edge_ros/figures.py"
    figures.write_text(figures.read_text().replace('"p50": 500', '"p50": 400'))
    assert colcon(workspace, *chosen).returncode != 0
    assert colcon(workspace, "test-result").returncode != 0


def test_a_checkout_is_its_own_share_folder():
    assert share_directory() == ROOT


def test_an_installed_package_finds_its_share_folder_by_prefix(tmp_path, monkeypatch):
    site = tmp_path / "lib/site-packages/vla_edge_ros"
    site.mkdir(parents=True)
    monkeypatch.setattr("vla_edge_ros.share.__file__", str(site / "share.py"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "nowhere"))
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"/opt/ros/none:{tmp_path}")
    with pytest.raises(UserError, match=r"source the workspace's install/setup\.bash"):
        share_directory()
    share = tmp_path / "share/vla_edge_ros"
    share.mkdir(parents=True)
    (share / "package.xml").touch()
    assert share_directory() == share


def test_the_fast_dds_profile_has_a_large_segment_and_udp():
    namespace = {"dds": "http://www.eprosima.com"}
    profile = ElementTree.parse(ROOT / "config/fastdds.xml").getroot()
    transports = {
        transport.findtext("dds:type", namespaces=namespace): transport
        for transport in profile.iterfind(".//dds:transport_descriptor", namespace)
    }
    assert set(transports) == {"SHM", "UDPv4"}
    segment = transports["SHM"].findtext("dds:segment_size", namespaces=namespace)
    assert int(segment) == 16 * 1024 * 1024
    participant = profile.find(".//dds:participant", namespace)
    assert participant.get("is_default_profile") == "true"
    assert participant.findtext(".//dds:useBuiltinTransports", namespaces=namespace) == "false"
    used = {element.text for element in participant.iterfind(".//dds:userTransports/*", namespace)}
    defined = {
        transport.findtext("dds:transport_id", namespaces=namespace) for transport in transports.values()
    }
    assert used == defined


CAMERA = """
import array, time, rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
rclpy.init()
node = rclpy.create_node("camera")
publisher = node.create_publisher(Image, "image", qos_profile_sensor_data)
image = Image(width=640, height=480, step=1920, encoding="rgb8", data=array.array("B", bytes(640 * 480 * 3)))
while publisher.get_subscription_count() == 0:
    time.sleep(0.01)
for _ in range(600):
    publisher.publish(image)
    time.sleep(1 / 60)
"""

VIEWER = """
import rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
rclpy.init()
node = rclpy.create_node("viewer")
seen = []
node.create_subscription(Image, "image", seen.append, qos_profile_sensor_data)
while len(seen) < 10:
    rclpy.spin_once(node)
print(len(seen[-1].data))
"""


def test_camera_images_pass_between_processes_with_the_profile():
    environment = {
        **os.environ,
        "FASTDDS_DEFAULT_PROFILES_FILE": str(ROOT / "config/fastdds.xml"),
        "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_DOMAIN_ID": "84",
    }
    camera = subprocess.Popen([sys.executable, "-c", CAMERA], env=environment)
    try:
        viewer = subprocess.run(
            [sys.executable, "-c", VIEWER], env=environment, capture_output=True, text=True, timeout=20
        )
    finally:
        camera.kill()
        camera.wait()
    assert viewer.stdout == f"{640 * 480 * 3}\n", viewer.stderr
