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

from vla_edge_ros.parameters import (
    NODE,
    Parameter,
    ParameterRefused,
    defaults,
    unknown_name,
    validate,
    validate_all,
)
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
    Ranges are added once the value is known to be in them: where ROS finds one that is not, it raises.
    """
    values = {}
    fallbacks = to_ros(defaults(table))
    any_type = ParameterDescriptor(dynamic_typing=True)
    for parameter in table:
        declared = node.declare_parameter(parameter.name, fallbacks[parameter.name], any_type)
        values[parameter.name] = validate(parameter.name, declared.value, table)
        node.set_descriptor(parameter.name, _descriptor(parameter))
    return values


def unknown(node: Node) -> list[str]:
    """One line for each given parameter that looks like one of the edge node's and is none.

    ROS ignores what no node declares, so that a misspelt limit would leave its default in force in silence. A
    file for `/**` may hold other nodes' parameters: only names of our groups (`camera.`) count.
    """
    groups = {parameter.name.split(".")[0] for parameter in NODE}
    # rclpy shows what files and command lines give nowhere else as long as it is not declared.
    given = getattr(node, "_parameter_overrides", {})
    return [
        unknown_name(name) for name in given if name.split(".")[0] in groups and not node.has_parameter(name)
    ]


def changed(
    values: dict[str, Value], changes: Iterable[RosParameter], is_configured: bool
) -> dict[str, Value]:
    """All values after `changes`; others' parameters (use_sim_time) pass. Raises ParameterRefused.

    What must fit together is checked at configuring and from then on: `ros2 param load` sets one at a time.
    """
    table = {parameter.name: parameter for parameter in NODE}
    accepted = dict(values)
    for change in changes:
        parameter = table.get(change.name)
        if parameter is None:
            continue
        value = validate(change.name, change.value)
        if is_configured and not parameter.is_live and value != values[change.name]:
            raise ParameterRefused(
                f"{change.name} is fixed while the node is configured: deactivate and clean it up first"
            )
        accepted[change.name] = value
    return validate_all(accepted) if is_configured else accepted


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
