"""What demo, replay and bench make of --param, and of numbers."""

import argparse

import pytest

from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters


def given(*words) -> dict:
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    return given_parameters(parser.parse_args(words))


@pytest.mark.parametrize("text", ["", "7", "true", "say: hello", "{}", "a = b", " two "])
def test_a_text_is_taken_as_it_stands(text):
    name = "instruction.system_prompt"
    assert given("--param", f"{name}={text}") == {name: text}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("memory.slots=2048", 2048),
        ("control.period_ms=50", 50.0),
        ("camera.is_compressed=true", True),
        ("actions.groups=[arm, hand]", ("arm", "hand")),
    ],
)
def test_other_values_are_read_as_yaml_into_the_parameters_type(pair, value):
    (taken,) = given("--param", pair).values()
    assert taken == value and type(taken) is type(value)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("memory.slots", "wanted NAME=VALUE"),
        ("=2048", "wanted NAME=VALUE"),
        ("memory.slots=", "must be a whole number"),
        ("memory.slots={", "cannot be read as YAML"),
        ("memory.policy=lru", "must be one of fifo"),
        ("memory.slot=3", "did you mean memory.slots"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(pair, words):
    with pytest.raises(UserError, match=words):
        given("--param", pair)


def test_the_named_options_stand_above_the_parameters():
    words = ("--param", "memory.policy=fifo", "--policy", "semantic", "--instruction", "")
    assert given(*words) == {"memory.policy": "semantic", "instruction.initial": ""}


@pytest.mark.parametrize("text", ["8e9", "8E+9", "8.e9", "8000000000", "8.0e+9"])
def test_an_exponent_is_read_as_ros_reads_it(text):
    assert given("--param", f"memory.budget_bytes={text}") == {"memory.budget_bytes": 8_000_000_000}


@pytest.mark.parametrize("name", ["memory.slots", "control.period_ms", "camera.is_compressed"])
@pytest.mark.parametrize(
    "text",
    [".nan", "1e400", "1" + "0" * 400, "1" + "0" * 5000, "[" * 3000, "!!timestamp x", "{a: &x [*x]}", "*x"],
    ids=lambda text: text[:20],
)
def test_no_value_is_odd_enough_for_more_than_a_line(name, text):
    with pytest.raises(UserError, match=rf"{name}(=.* cannot be read as YAML|: .* is not allowed)"):
        given("--param", f"{name}={text}")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400"])
def test_a_duration_is_finite_and_above_0(text):
    with pytest.raises(argparse.ArgumentTypeError, match="finite number above 0"):
        positive(text)


def test_a_count_has_a_least_value():
    assert whole(1)("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="0 must be at least 1"):
        whole(1)("0")
