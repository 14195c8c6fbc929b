"""JSON schemas of what is recorded, from the types of its fields, as far as Foxglove reads the language."""

import dataclasses
import types
import typing
from enum import Enum

_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def json_schema(kind: object) -> dict:
    """The schema of `kind` as `dataclasses.asdict` and `json.dumps` write it.

    kind: bool, int, float, str, dict, an Enum of texts, list[...], a dataclass, or one of these and None.
    Foxglove refuses alternatives (`anyOf`, a list of types): what may be null is described without that.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return json_schema(kind)
    if origin is list:
        return {"type": "array", "items": json_schema(arguments[0])}
    if kind is dict or origin is dict:
        return {"type": "object", "properties": {}}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {field.name: json_schema(hints[field.name]) for field in dataclasses.fields(kind)}
        return {"type": "object", "properties": fields}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string"}
    return {"type": _SCALARS[kind]}
