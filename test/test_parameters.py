"""The table of parameters: what is taken, what is refused, and that its generated files are current."""

import math
import re
from pathlib import Path

import pytest
import rclpy
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rcl_interfaces.msg import ParameterDescriptor

import vla_edge_ros
from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.control import settings as settings_of
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.parameters import (
    BAG_CAMERA,
    NODE,
    SIMULATION,
    Parameter,
    ParameterRefused,
    defaults,
    validate,
    validate_all,
)
from vla_edge_ros.parameters.__main__ import main as write_command
from vla_edge_ros.parameters.pages import GROUPS, default_file, reference_page
from vla_edge_ros.perception.stamps import StampWatch

NAMES = [parameter.name for parameter in NODE]
NUMBERS = [parameter for parameter in NODE if parameter.type_name in ("integer", "double")]


def refusal(*arguments) -> str:
    with pytest.raises(ParameterRefused) as refused:
        validate(*arguments)
    return str(refused.value)


def refusal_of_set(**changes) -> str:
    with pytest.raises(ParameterRefused) as refused:
        validate_all({name.replace("__", "."): value for name, value in changes.items()})
    return str(refused.value)


@pytest.mark.parametrize("table", [NODE, BAG_CAMERA, SIMULATION])
def test_every_default_is_allowed_and_keeps_its_type(table):
    for parameter in table:
        taken = validate(parameter.name, parameter.default, table)
        assert taken == parameter.default
        assert type(taken) is type(parameter.default)


def test_the_defaults_fit_together():
    assert validate_all({}) == defaults(NODE)


def test_what_is_made_without_the_table_has_its_defaults():
    config = settings_of.action_config(defaults())
    assert ActionConfig(config.period_ns) == config
    assert vars(StampWatch()) == vars(settings_of.stamp_watch(defaults()))


def test_names_are_unique_and_grouped_by_the_known_prefixes():
    assert len(set(NAMES)) == len(NAMES)
    assert {name.split(".")[0] for name in NAMES} == set(GROUPS)


def test_a_unit_in_the_name_is_the_unit_of_the_value():
    for parameter in NODE:
        suffix = re.search(r"_(ms|bytes|hz|ticks|frames|threads)$", parameter.name)
        if suffix and parameter.type_name in ("integer", "double"):
            assert parameter.unit == suffix.group(1), parameter.name


def test_every_number_has_bounds_and_every_description_is_a_sentence():
    for parameter in NUMBERS:
        assert parameter.minimum <= parameter.default <= parameter.maximum, parameter.name
    for parameter in (*NODE, *BAG_CAMERA, *SIMULATION):
        assert len(parameter.description) > 20
        assert parameter.description.endswith("."), parameter.name


def test_whole_numbers_are_taken_for_doubles():
    taken = validate("control.deadline_ms", 30)
    assert taken == 30.0
    assert type(taken) is float


def test_whole_doubles_are_taken_for_integers_and_others_are_not():
    taken = validate("memory.budget_bytes", 4e9)
    assert taken == 4_000_000_000
    assert type(taken) is int
    assert "a whole number" in refusal("memory.slots", 1024.5)


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda parameter: parameter.name)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "10", None, [1]])
def test_what_is_no_finite_number_is_refused(parameter, value):
    refusal(parameter.name, value)


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda parameter: parameter.name)
def test_bounds_are_allowed_themselves_and_nothing_beyond(parameter):
    assert validate(parameter.name, parameter.minimum) == parameter.minimum
    assert validate(parameter.name, parameter.maximum) == parameter.maximum
    refusal(parameter.name, parameter.minimum - 1)
    refusal(parameter.name, parameter.maximum * 2 + 1)


@given(value=st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())))
@settings(max_examples=200, deadline=None)
def test_any_value_is_either_taken_in_the_right_type_or_refused_in_one_line(value):
    for parameter in NODE:
        try:
            taken = validate(parameter.name, value)
        except ParameterRefused as refused:
            assert "\n" not in str(refused)
            assert str(refused).startswith(parameter.name)
        else:
            assert type(taken) is type(parameter.default)
            if isinstance(taken, float):
                assert parameter.minimum <= taken <= parameter.maximum


def test_a_refusal_says_what_was_found_and_what_is_allowed():
    assert refusal("control.period_ms", 0) == (
        "control.period_ms: 0 is not allowed, it must be a number from 5 to 1000, in ms"
    )
    assert refusal("memory.policy", "lru") == (
        "memory.policy: 'lru' is not allowed, it must be one of " + ", ".join(POLICIES)
    )
    assert refusal("camera.is_compressed", "yes").endswith("it must be true or false")
    assert len(refusal("memory.policy", "x\n" * 5000)) < 300


def test_a_structure_that_is_small_in_memory_and_endless_as_text_is_refused_at_once():
    value = "x"
    for _ in range(60):
        value = [value] * 10
    assert len(refusal("memory.slots", value)) < 200


def test_an_unknown_name_is_refused_with_the_nearest_known_one():
    assert "did you mean control.deadline_ms?" in refusal("control.dedline_ms", 30.0)
    with pytest.raises(ParameterRefused, match=r"camera\.compressed: there is no parameter"):
        validate_all({"camera.compressed": True})


def test_lists_of_texts_come_as_ros_gives_them():
    assert validate("actions.groups", ["arm", "gripper"]) == ("arm", "gripper")
    assert validate("actions.groups", [""]) == ()
    assert validate("actions.groups", None) == ()
    refusal("actions.groups", ["arm", "arm"])
    refusal("actions.groups", [1])
    refusal("actions.groups", "arm")


def test_values_that_do_not_fit_together_are_refused():
    assert "must not be later than the next tick" in refusal_of_set(control__period_ms=20.0)
    assert "no time is left" in refusal_of_set(control__margin_ms=33.0)
    assert "no time is left" in refusal_of_set(control__margin_ms=32.9999999)  # 33 ms in whole nanoseconds
    assert "at least one tick" in refusal_of_set(actions__ttl_ms=33, actions__min_lead_ms=0)
    assert "= 53" in refusal_of_set(actions__ttl_ms=50)
    assert "stale frame passes" in refusal_of_set(camera__max_age_ms=5000, camera__foreign_clock_ms=5000)
    too_wide = refusal_of_set(memory__policy="sliding_window", memory__window_frames=32)
    assert "at most 31 frames" in too_wide
    assert "one frame and the action tokens" in refusal_of_set(memory__prompt_slots=1024 - 39)
    fewer = {"memory__policy": "sliding_window", "memory__prompt_slots": 500}
    assert "at most 16 frames" in refusal_of_set(**fewer)


def test_steps_of_the_ladder_that_could_never_be_taken_or_last_too_long_are_refused_with_what_works():
    by_ema = refusal_of_set(ladder__forget_frames=4, admission__estimator="ema")
    assert "set ladder.forget_frames to 0 or the estimator to conformal" in by_ema
    full = refusal_of_set(ladder__forget_frames=4, ladder__least_frames=31)
    assert "memory holds at most 31 frames" in full and "below 31" in full
    window = {"memory__policy": "sliding_window", "memory__window_frames": 8}
    assert "at most 8 frames" in refusal_of_set(ladder__forget_frames=1, **window)
    single = {"memory__policy": "sliding_window", "memory__window_frames": 1, "ladder__least_frames": 1}
    assert "could forget none; set the second to 0" in refusal_of_set(ladder__forget_frames=1, **single)
    assert "it must be at most 9" in refusal_of_set(ladder__reuse_ticks=10)
    validate_all({"ladder.forget_frames": 4, "ladder.least_frames": 30, "ladder.reuse_ticks": 9})
    validate_all({"ladder.least_frames": 127, "admission.estimator": "fixed"})


def test_a_window_that_does_not_fit_matters_only_to_the_policy_that_uses_it():
    assert validate_all({"memory.window_frames": 127})["memory.window_frames"] == 127


def test_validate_all_fills_in_the_defaults():
    checked = validate_all({"memory.policy": "fifo"})
    assert checked == {**defaults(NODE), "memory.policy": "fifo"}


def test_the_generated_files_are_current(capsys):
    assert write_command([]) == 0, capsys.readouterr().out + "python -m vla_edge_ros.parameters --write"


def test_the_page_and_the_file_name_every_parameter():
    page = reference_page()
    for parameter in (*NODE, *BAG_CAMERA, *SIMULATION):
        assert f"| `{parameter.name}` | {parameter.type_name} |" in page
    (wildcard,) = yaml.safe_load(default_file()).items()
    assert wildcard[0] == "/**"
    in_file = {
        f"{group}.{name}" for group, members in wildcard[1]["ros__parameters"].items() for name in members
    }
    assert in_file == set(NAMES)


def test_a_row_says_its_bounds_in_words():
    assert Parameter("a", 1, "x", minimum=2).wanted == "a whole number of at least 2"
    assert Parameter("a", 1.5, "x", unit="ms").wanted == "a number, in ms"
    assert Parameter("a", 0.5, "x", minimum=0.001, maximum=86_400_000.0).bounds == " from 0.001 to 86400000"


def test_the_default_file_means_the_defaults_to_ros(tmp_path):
    path = tmp_path / "edge.yaml"
    path.write_text(default_file())
    context = rclpy.Context()
    overrides = ["-p", "control.deadline_ms:=30", "-p", "memory.policy:=fifo"]
    rclpy.init(args=["--ros-args", "--params-file", str(path), *overrides], context=context, domain_id=83)
    try:
        node = rclpy.create_node("any_name", namespace="left_arm", context=context)
        any_type = ParameterDescriptor(dynamic_typing=True)
        found = {name: node.declare_parameter(name, descriptor=any_type).value for name in NAMES}
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)
    expected = {**defaults(NODE), "control.deadline_ms": 30.0, "memory.policy": "fifo"}
    assert validate_all(found) == expected


def test_every_parameter_is_read_somewhere():
    package = Path(vla_edge_ros.__file__).parent
    readers = [path for path in package.rglob("*.py") if path.parent.name != "parameters"]
    text = "".join(path.read_text() for path in readers)
    assert [name for name in NAMES if f'["{name}"]' not in text] == []
