"""The node's parameters, declared from the one table and refused by it."""

from collections.abc import Iterable, Mapping

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
)
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from vla_edge_ros.parameters import NODE, Parameter, ParameterRefused, validate, validate_all
from vla_edge_ros.parameters.parameter import Value

_TYPES = {
    "bool": ParameterType.PARAMETER_BOOL,
    "integer": ParameterType.PARAMETER_INTEGER,
    "double": ParameterType.PARAMETER_DOUBLE,
    "string": ParameterType.PARAMETER_STRING,
    "string_array": ParameterType.PARAMETER_STRING_ARRAY,
}


def declare(node: Node, table: tuple[Parameter, ...] = NODE) -> dict[str, Value]:
    """Declare every parameter of `table`; returns the values given. Raises ParameterRefused.

    Declared with dynamic typing: ROS refuses `30` for a double in words that help nobody; the table takes it.
    """
    values = {}
    defaults = to_ros({parameter.name: parameter.default for parameter in table})
    for parameter in table:
        declared = node.declare_parameter(parameter.name, defaults[parameter.name], _descriptor(parameter))
        values[parameter.name] = validate(parameter.name, declared.value, table)
    return values


def changed(
    values: dict[str, Value], changes: Iterable[RosParameter], is_configured: bool
) -> dict[str, Value]:
    """All values after `changes`; others' parameters (use_sim_time) pass. Raises ParameterRefused."""
    table = {parameter.name: parameter for parameter in NODE}
    accepted = dict(values)
    for change in changes:
        parameter = table.get(change.name)
        if parameter is None:
            continue
        if is_configured and not parameter.is_live:
            raise ParameterRefused(
                f"{change.name} is fixed while the node is configured: deactivate and clean it up first"
            )
        accepted[change.name] = change.value
    return validate_all(accepted)


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(
        description=parameter.description,
        additional_constraints=f"must be {parameter.wanted}",
        dynamic_typing=True,
        type=_TYPES[parameter.type_name],
    )
    if parameter.minimum is not None and parameter.maximum is not None:
        bounds = {"from_value": parameter.minimum, "to_value": parameter.maximum}
        if parameter.type_name == "integer":
            descriptor.integer_range = [IntegerRange(**{k: int(v) for k, v in bounds.items()})]
        else:
            descriptor.floating_point_range = [FloatingPointRange(**{k: float(v) for k, v in bounds.items()})]
    return descriptor


def to_ros(values: Mapping[str, Value]) -> dict:
    """The values as ROS takes them; an empty list as [""], since ROS reads no type from an empty one."""
    return {name: (list(v) or [""]) if isinstance(v, tuple) else v for name, v in values.items()}
