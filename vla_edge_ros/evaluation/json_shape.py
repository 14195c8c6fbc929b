"""Is a JSON value what its type says? For files that may be cut, edited, or written by another version."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache


class WrongShape(ValueError):
    """`str()` of it is one line: the place in the value, what was found and what was wanted."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self._place = ""

    def inside(self, part: str) -> "WrongShape":
        self._place = part + self._place
        return self

    def __str__(self) -> str:
        return f"{self._place.removeprefix('.') or 'it'} {self.args[0]}"


def check(value: object, kind: object) -> None:
    """Raises WrongShape where `value`, as `json.loads` gives it, is no `kind`.

    kind: int (below 2**62), float (any finite number), bool, str, object, None, an Enum of texts, list[...],
    dict[str, ...], unions, dataclasses and TypedDicts. Fields that a kind does not have are ignored.
    """
    _checker(kind)(value)


@cache
def _checker(kind: object) -> Callable[[object], None]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is object:
        return lambda value: None
    if origin in (types.UnionType, typing.Union):
        return _union(arguments)
    if kind is list or origin is list:
        return _list_of(_checker(arguments[0] if arguments else object))
    if kind is dict or origin is dict:
        return _dict_of(_checker(arguments[1] if arguments else object))
    if dataclasses.is_dataclass(kind):
        return _fields_of(kind, {field.name for field in dataclasses.fields(kind)})
    if typing.is_typeddict(kind):
        return _fields_of(kind, kind.__required_keys__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _scalar(lambda value: value in {member.value for member in kind}, f"a {kind.__name__}")
    return _scalar(*_SCALARS[kind])


def _wrong(value: object, wanted: str) -> WrongShape:
    shown = repr(value)
    return WrongShape(f"is {shown if len(shown) <= 40 else shown[:37] + '...'}, wanted {wanted}")


_SCALARS = {
    int: (lambda value: type(value) is int and abs(value) < 2**62, "a whole number below 2**62"),
    float: (lambda value: type(value) in (int, float) and -math.inf < value < math.inf, "a finite number"),
    bool: (lambda value: type(value) is bool, "true or false"),
    str: (lambda value: type(value) is str, "a text"),
    type(None): (lambda value: value is None, "null"),
}


def _scalar(is_right: Callable[[object], bool], wanted: str) -> Callable[[object], None]:
    def check_scalar(value: object) -> None:
        if not is_right(value):
            raise _wrong(value, wanted)

    return check_scalar


def _union(kinds: tuple) -> Callable[[object], None]:
    """Of one kind and None, which is all that is written."""
    (kind,) = (kind for kind in kinds if kind is not type(None))
    check_other = _checker(kind)

    def check_union(value: object) -> None:
        if value is not None:
            check_other(value)

    return check_union


def _list_of(check_item: Callable[[object], None]) -> Callable[[object], None]:
    def check_list(value: object) -> None:
        if type(value) is not list:
            raise _wrong(value, "a list")
        for index, item in enumerate(value):
            try:
                check_item(item)
            except WrongShape as wrong:
                raise wrong.inside(f"[{index}]") from None

    return check_list


def _dict_of(check_item: Callable[[object], None]) -> Callable[[object], None]:
    def check_dict(value: object) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, item in value.items():
            try:
                check_item(item)
            except WrongShape as wrong:
                raise wrong.inside(f".{name}") from None

    return check_dict


def _fields_of(kind: type, required: set[str]) -> Callable[[object], None]:
    checkers = {name: _checker(hint) for name, hint in typing.get_type_hints(kind).items()}

    def check_fields(value: object) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, check_field in checkers.items():
            try:
                if name in value:
                    check_field(value[name])
                elif name in required:
                    raise WrongShape("is missing")
            except WrongShape as wrong:
                raise wrong.inside(f".{name}") from None

    return check_fields
