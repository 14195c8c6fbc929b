"""Where the messages of a tick go."""

from typing import Protocol

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.control.record import TickRecord


class Sink(Protocol):
    """Where a tick's messages go; each call returns when the message is handed to the middleware."""

    def trajectory(self, trajectory: GroupTrajectory) -> None: ...

    def command(self, command: GroupCommand) -> None: ...

    def prepare(self, record: TickRecord) -> None:
        """Build what `tick` will send of this record, before the wait for the cut-off."""

    def tick(self, record: TickRecord) -> None:
        """Send what was prepared last, which is of this record."""

    def finished(self, record: TickRecord) -> None:
        """The tick's last message is out and its lateness is known; the record changes no more."""
