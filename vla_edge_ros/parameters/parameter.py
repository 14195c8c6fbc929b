"""One row of the table of parameters."""

from dataclasses import dataclass

Value = bool | int | float | str | tuple[str, ...]

TYPE_NAMES = {bool: "bool", int: "integer", float: "double", str: "string", tuple: "string_array"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a node; its type is the type of `default`.

    unit: of the value, also in the name where the name has one (`_ms`, `_bytes`).
    minimum, maximum: both allowed themselves; None where there is no bound.
    allowed: the only texts taken (strings only); empty where any text is.
    is_live: may be changed at any time; otherwise only while the node is unconfigured.
    """

    name: str
    default: Value
    description: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] = ()
    is_live: bool = False

    @property
    def type_name(self) -> str:
        """The type as ROS names it: bool, integer, double, string or string_array."""
        return TYPE_NAMES[type(self.default)]

    @property
    def wanted(self) -> str:
        """What a value must be, in words: `a number from 5 to 1000, in ms`."""
        if self.allowed:
            return "one of " + ", ".join(self.allowed)
        noun = {
            "bool": "true or false",
            "integer": "a whole number",
            "double": "a number",
            "string": "a text",
            "string_array": "a list of texts, each named once",
        }[self.type_name]
        return noun + self.bounds + (f", in {self.unit}" if self.unit else "")

    @property
    def bounds(self) -> str:
        if self.minimum is None:
            return ""
        if self.maximum is None:
            return f" of at least {_plain(self.minimum)}"
        return f" from {_plain(self.minimum)} to {_plain(self.maximum)}"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
