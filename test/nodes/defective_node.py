"""The edge node with two planted defects: in its joint_states callback, and in a tick after a `set`."""

import sys

from vla_edge_ros.nodes import edge_node
from vla_edge_ros.nodes.sink import RosSink

on_joint_states = edge_node.EdgeNode._on_joint_states
publish_tick = RosSink.tick


def defective_joint_states(node, message):
    if "defect" in message.name:
        raise ZeroDivisionError("a planted defect")
    on_joint_states(node, message)


def defective_tick(sink, record):
    if any(event["event"] == "retune" for event in record.events):
        raise ZeroDivisionError("a planted defect")
    publish_tick(sink, record)


edge_node.EdgeNode._on_joint_states = defective_joint_states
RosSink.tick = defective_tick

if __name__ == "__main__":
    sys.exit(edge_node.main())
