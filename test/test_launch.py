"""The launch files, imported against minimal fakes: `launch` and `launch_ros` are not on PyPI."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import yaml

from vla_edge_ros.parameters import BAG_CAMERA, validate

ROOT = Path(__file__).resolve().parents[1]
PROFILE = str(ROOT / "config/fastdds.xml")
CONFIGURE, ACTIVATE = 1, 3

FAKES = {
    "launch": ["LaunchDescription"],
    "launch.actions": [
        "DeclareLaunchArgument",
        "EmitEvent",
        "IncludeLaunchDescription",
        "RegisterEventHandler",
        "SetEnvironmentVariable",
        "Shutdown",
    ],
    "launch.conditions": ["IfCondition"],
    "launch.event_handlers": ["OnProcessStart"],
    "launch.launch_description_sources": ["PythonLaunchDescriptionSource"],
    "launch.substitutions": ["LaunchConfiguration"],
    "launch_ros": [],
    "launch_ros.actions": ["LifecycleNode", "Node"],
    "launch_ros.event_handlers": ["OnStateTransition"],
    "launch_ros.events": [],
    "launch_ros.events.lifecycle": ["ChangeState"],
    "launch_ros.parameter_descriptions": ["ParameterValue"],
}


class Recorded:
    """Remembers what it was made with; equal to another of the same name and arguments."""

    def __init__(self, *args, **kwargs):
        self.args = args
        self.kwargs = kwargs

    def __eq__(self, other):
        return type(self) is type(other) and (self.args, self.kwargs) == (other.args, other.kwargs)

    __hash__ = None


@pytest.fixture
def load(monkeypatch):
    """Load a launch file with fakes in place of `launch` and `launch_ros`; gives (module, description)."""
    for name, members in FAKES.items():
        module = types.ModuleType(name)
        for member in members:
            setattr(module, member, type(member, (Recorded,), {}))
        monkeypatch.setitem(sys.modules, name, module)
    events = types.ModuleType("launch.events")
    events.matches_action = lambda action: ("matches", action)
    monkeypatch.setitem(sys.modules, "launch.events", events)
    for variable in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE", "ROS_DISTRO"):
        monkeypatch.delenv(variable, raising=False)

    def load_file(name):
        spec = importlib.util.spec_from_file_location(name.replace(".", "_"), ROOT / "launch" / name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, module.generate_launch_description().args[0]

    return load_file


def of_kind(entities, kind):
    return [entity for entity in entities if type(entity).__name__ == kind]


def one_of_kind(entities, kind):
    (found,) = of_kind(entities, kind)
    return found


def argument_of(value):
    assert type(value).__name__ == "LaunchConfiguration"
    return value.args[0]


def defaults(entities):
    found = of_kind(entities, "DeclareLaunchArgument")
    assert all(len(argument.kwargs["description"]) > 15 for argument in found)
    return {argument.args[0]: argument.kwargs.get("default_value") for argument in found}


def profile_variables(entities):
    found = of_kind(entities, "SetEnvironmentVariable")
    assert all(variable.args[1] == PROFILE for variable in found)
    return {variable.args[0] for variable in found}


def test_edge_describes_its_arguments_and_starts_safely_by_default(load):
    _, entities = load("edge.launch.py")
    assert defaults(entities) == {
        "namespace": "",
        "params_file": str(ROOT / "config/edge.yaml"),
        "image_topic": "image",
        "use_sim_time": "false",
        "autostart": "true",
        "use_respawn": "false",
        "log_level": "info",
    }
    assert Path(defaults(entities)["params_file"]).is_file()


def test_edge_passes_each_argument_to_the_node(load):
    _, entities = load("edge.launch.py")
    node = one_of_kind(entities, "LifecycleNode").kwargs
    assert (node["package"], node["executable"], node["name"]) == (
        "vla_edge_ros",
        "vla_edge_node",
        "vla_edge_node",
    )
    assert argument_of(node["namespace"]) == "namespace"
    assert argument_of(node["respawn"]) == "use_respawn"
    file, overrides = node["parameters"]
    assert argument_of(file) == "params_file"
    assert argument_of(overrides["use_sim_time"].args[0]) == "use_sim_time"
    assert overrides["use_sim_time"].kwargs == {"value_type": bool}
    ((topic, remapped),) = node["remappings"]
    assert (topic, argument_of(remapped)) == ("image", "image_topic")
    assert node["arguments"][:2] == ["--ros-args", "--log-level"]
    assert argument_of(node["arguments"][2]) == "log_level"


def test_autostart_configures_at_each_process_start_and_then_activates(load):
    _, entities = load("edge.launch.py")
    node = one_of_kind(entities, "LifecycleNode")
    configure, activate = of_kind(entities, "RegisterEventHandler")
    for handler in (configure, activate):
        assert argument_of(handler.kwargs["condition"].args[0]) == "autostart"

    started = configure.args[0].kwargs
    assert type(configure.args[0]).__name__ == "OnProcessStart"
    assert started["target_action"] is node
    assert transitions(started["on_start"], node) == [CONFIGURE]

    configured = activate.args[0].kwargs
    assert configured["target_lifecycle_node"] is node
    assert (configured["start_state"], configured["goal_state"]) == ("configuring", "inactive")
    assert transitions(configured["entities"], node) == [ACTIVATE]
    assert entities.index(configure) < entities.index(node), "a handler added after the start hears no start"


def transitions(emitted, node):
    changes = [emit.kwargs["event"].kwargs for emit in emitted]
    assert all(change["lifecycle_node_matcher"] == ("matches", node) for change in changes)
    return [change["transition_id"] for change in changes]


def test_both_names_of_the_profile_variable_are_set_where_the_distribution_is_unknown(load):
    _, entities = load("edge.launch.py")
    both = {"FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"}
    assert profile_variables(entities) == both
    node = one_of_kind(entities, "LifecycleNode")
    assert max(entities.index(v) for v in of_kind(entities, "SetEnvironmentVariable")) < entities.index(node)


@pytest.mark.parametrize("distribution", ["humble", "jazzy", "kilted", "rolling"])
def test_each_distribution_gets_the_variable_that_it_reads(load, monkeypatch, distribution):
    module, _ = load("edge.launch.py")
    monkeypatch.setenv("ROS_DISTRO", distribution)
    variables = profile_variables(module.image_transport())
    if distribution in ("humble", "jazzy"):
        assert "FASTRTPS_DEFAULT_PROFILES_FILE" in variables
    else:
        assert variables == {"FASTDDS_DEFAULT_PROFILES_FILE"}


@pytest.mark.parametrize("variable", ["FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"])
def test_a_profile_of_the_users_own_is_left_in_force(load, monkeypatch, variable):
    module, _ = load("edge.launch.py")
    monkeypatch.setenv(variable, "/home/me/profile.xml")
    assert module.image_transport() == []


def test_replay_feeds_the_edge_node_from_a_bag(load):
    _, entities = load("replay.launch.py")
    assert defaults(entities) == {"bag": None, "topic": "", "loop": "false", "rate": "1.0", "namespace": ""}
    edge = one_of_kind(entities, "IncludeLaunchDescription")
    assert edge.args[0].args == (str(ROOT / "launch/edge.launch.py"),)
    passed = dict(edge.kwargs["launch_arguments"])
    assert passed["image_topic"] == "image"
    assert argument_of(passed["namespace"]) == "namespace"

    camera = one_of_kind(entities, "Node")
    assert camera.kwargs["executable"] == "bag_camera"
    assert argument_of(camera.kwargs["namespace"]) == "namespace"
    assert type(camera.kwargs["on_exit"]).__name__ == "Shutdown"
    assert entities.index(edge) < entities.index(camera), "the edge sets the Fast DDS profile for both"


def test_replay_gives_the_bag_camera_parameters_that_it_has_in_their_types(load):
    _, entities = load("replay.launch.py")
    (given,) = one_of_kind(entities, "Node").kwargs["parameters"]
    known = {parameter.name: type(parameter.default) for parameter in BAG_CAMERA}
    for name in ("bag", "topic", "loop", "rate"):
        assert argument_of(given[name].args[0]) == name
        assert given[name].kwargs["value_type"] is known[name]
    wait_s = given["wait_for_subscriber_s"]
    assert validate("wait_for_subscriber_s", wait_s, BAG_CAMERA) == wait_s > 0, "the edge takes time to start"


def test_replay_gives_compressed_images_to_the_edge_under_the_same_name(load):
    _, entities = load("replay.launch.py")
    assert one_of_kind(entities, "Node").kwargs["remappings"] == [("image/compressed", "image")]


def test_the_default_parameter_file_is_for_any_node_name_and_namespace():
    assert list(yaml.safe_load((ROOT / "config/edge.yaml").read_text())) == ["/**"]
