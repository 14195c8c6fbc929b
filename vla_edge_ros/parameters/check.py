"""Is a value allowed? The same answer at start, from a file and from `ros2 param set`."""

import difflib
import reprlib
import sys
from collections.abc import Mapping

from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.errors import UserError
from vla_edge_ros.parameters.parameter import Parameter, Value
from vla_edge_ros.parameters.table import NODE


class ParameterRefused(UserError):
    """A value or a combination of values is not allowed; one line says what is."""


def defaults(table: tuple[Parameter, ...] = NODE) -> dict[str, Value]:
    return {parameter.name: parameter.default for parameter in table}


def validate(name: str, value: object, table: tuple[Parameter, ...] = NODE) -> Value:
    """`value` in the type of parameter `name`; raises ParameterRefused.

    Whole numbers are taken for doubles (30 for 30.0) and whole doubles for integers (8e9 for 8000000000),
    since YAML files and command lines mix them. Of a list, None and empty texts count for nothing: ROS reads
    `[]` in a parameter file as no value at all.
    """
    parameter = _row(name, table)
    taken = _taken(parameter, value)
    if taken is None:
        raise ParameterRefused(f"{name}: {_shown(value)} is not allowed, it must be {parameter.wanted}")
    return taken


def validate_all(values: Mapping[str, object]) -> dict[str, Value]:
    """The whole set of the edge node's parameters, defaults filled in; raises ParameterRefused.

    Checks each value, then the values that must fit together.
    """
    checked = defaults(NODE)
    for name, value in values.items():
        checked[name] = validate(name, value, NODE)
    for is_right, complaint in _combinations(checked):
        if not is_right:
            raise ParameterRefused(complaint)
    return checked


def _row(name: str, table: tuple[Parameter, ...]) -> Parameter:
    for parameter in table:
        if parameter.name == name:
            return parameter
    raise ParameterRefused(unknown_name(name, table))


def unknown_name(name: str, table: tuple[Parameter, ...] = NODE) -> str:
    """The line that says of `name` that it is none of `table`."""
    close = difflib.get_close_matches(name, [parameter.name for parameter in table], n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/parameters.md lists them all"
    return f"{name}: there is no parameter of this name; {hint}"


def _taken(parameter: Parameter, value: object) -> Value | None:
    kind = parameter.type_name
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind == "string":
        is_text = isinstance(value, str) and (not parameter.allowed or value in parameter.allowed)
        return value if is_text else None
    if kind == "string_array":
        return _texts(value)
    return _number(parameter, value)


def _number(parameter: Parameter, value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    lowest = -sys.float_info.max if parameter.minimum is None else parameter.minimum
    highest = sys.float_info.max if parameter.maximum is None else parameter.maximum
    # Before any conversion: NaN is in no range, and a whole number of 400 digits is no float.
    if not lowest <= value <= highest:
        return None
    if parameter.type_name == "double":
        return float(value)
    return int(value) if value == int(value) else None


def _texts(value: object) -> tuple[str, ...] | None:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        return None
    texts = tuple(text for text in value if text)
    return texts if len(set(texts)) == len(texts) else None


def _shown(value: object) -> str:
    is_nested = isinstance(value, dict | list | tuple)
    # A text of a few YAML aliases can stand for a structure that would not fit into memory as text.
    text = " ".join((reprlib.repr(value) if is_nested else repr(value)).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _combinations(values: Mapping[str, Value]) -> list[tuple[bool, str]]:
    """What must hold between parameters, each with the line that says so when it does not."""
    period, deadline = values["control.period_ms"], values["control.deadline_ms"]
    margin, lead, ttl = values["control.margin_ms"], values["actions.min_lead_ms"], values["actions.ttl_ms"]
    foreign, age = values["camera.foreign_clock_ms"], values["camera.max_age_ms"]
    window, slots = values["memory.window_frames"], values["memory.slots"]
    prompts = values["memory.prompt_slots"]
    frames = (slots - prompts - MAX_ACTION_TOKENS) // FRAME_TOKENS
    held = min(frames, window) if values["memory.policy"] == "sliding_window" else frames
    cure = "set the second to 0" if held < 2 else f"set the first below {held} or the second to 0"
    forgets, least = values["ladder.forget_frames"], values["ladder.least_frames"]
    estimator = values["admission.estimator"]
    reuse, max_hold = values["ladder.reuse_ticks"], values["actions.max_hold_ms"]
    return [
        (
            deadline <= period,
            f"control.deadline_ms is {deadline:g} and control.period_ms is {period:g}: "
            "the deadline must not be later than the next tick",
        ),
        (
            # In nanoseconds, as the schedule has them: a smaller difference is none.
            round(1e6 * margin) < round(1e6 * deadline),
            f"control.margin_ms is {margin:g} and control.deadline_ms is {deadline:g}: "
            "the margin must be smaller than the deadline, or no time is left for inference",
        ),
        (
            ttl >= period,
            f"actions.ttl_ms is {ttl:g} and control.period_ms is {period:g}: "
            "an action must live for at least one tick",
        ),
        (
            ttl >= deadline + lead,
            f"actions.ttl_ms is {ttl:g}: it must be at least control.deadline_ms + actions.min_lead_ms = "
            f"{deadline + lead:g}, or every action is too old before it may be sent",
        ),
        (
            foreign > age,
            f"camera.foreign_clock_ms is {foreign:g} and camera.max_age_ms is {age:g}: the first must be "
            "larger, or a stale frame passes for one of a foreign clock",
        ),
        (
            frames >= 1,
            f"memory.prompt_slots is {prompts} and memory.slots is {slots}: one frame and the action tokens "
            f"need {FRAME_TOKENS + MAX_ACTION_TOKENS} beside, lower the first or raise the second",
        ),
        (
            values["memory.policy"] != "sliding_window" or window <= frames,
            f"memory.window_frames is {window} and memory.slots is {slots}, which hold at most {frames} "
            "frames: lower the window or raise the slots",
        ),
        (
            not forgets or estimator == "conformal",
            f"ladder.forget_frames is {forgets} and admission.estimator is {estimator}, for which a pass "
            "over fewer frames is no shorter: set ladder.forget_frames to 0 or the estimator to conformal",
        ),
        (
            not forgets or least < held,
            f"ladder.least_frames is {least} and memory holds at most {held} frames: ladder.forget_frames "
            f"could forget none; {cure}",
        ),
        (
            reuse * period <= max_hold,
            f"ladder.reuse_ticks is {reuse}: with control.period_ms {period:g} and actions.max_hold_ms "
            f"{max_hold:g} it must be at most {int(max_hold // period)}, so that an action is not used again "
            "for longer than a hold may last",
        ),
    ]
