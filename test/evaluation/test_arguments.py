"""What demo, replay and bench make of --param."""

import argparse

import pytest

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
