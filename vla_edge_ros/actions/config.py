"""The part of the configuration that decides how actions are followed, checked against the policy."""

from dataclasses import dataclass

from vla_edge_ros.actions.policy import Kind, Policy
from vla_edge_ros.actions.reading import PolicyError


@dataclass(frozen=True, slots=True)
class ActionConfig:
    """
    period_ns: of the control loop.
    ttl_ns: no action is executed longer than this after its frame's capture.
    max_hold_ns: on ticks held longer than this no motion is sent.
    min_lead_ns: one period of the robot's controller; steps due sooner are dropped.
    joint_state_max_age_ns: only younger joint states are relied on.
    anchor: what the steps of a chunk are timed from, "effect" or "capture".
    """

    period_ns: int
    ttl_ns: int = 200_000_000
    max_hold_ns: int = 300_000_000
    min_lead_ns: int = 20_000_000
    joint_state_max_age_ns: int = 100_000_000
    anchor: str = "effect"

    def __post_init__(self) -> None:
        for name in ("period_ns", "ttl_ns", "joint_state_max_age_ns"):
            if getattr(self, name) <= 0:
                raise PolicyError(f"actions: {name} is {getattr(self, name)}, wanted above 0")
        for name in ("max_hold_ns", "min_lead_ns"):
            if getattr(self, name) < 0:
                raise PolicyError(f"actions: {name} is {getattr(self, name)}, wanted at least 0")
        if self.anchor not in ("effect", "capture"):
            raise PolicyError(f"actions.anchor is {self.anchor!r}, wanted effect or capture")

    def check(self, policy: Policy) -> None:
        """Raises PolicyError where `policy` could never move, or not as it means to."""
        if policy.action_period_ns >= self.ttl_ns:
            raise PolicyError(
                f"policy {policy.name}: its action_period_ms of {policy.action_period_ns / 1e6:g} is not "
                f"below actions.ttl_ms of {self.ttl_ns / 1e6:g}: every step would be too old; raise it"
            )
        relative = [d.name for d in policy.dimensions if not d.kind.is_absolute]
        if self.anchor == "capture" and relative:
            raise PolicyError(
                f"policy {policy.name}: actions.anchor capture is for absolute positions and "
                f"{', '.join(relative)} of it are not; set actions.anchor to effect"
            )

    def warnings(self, policy: Policy) -> list[str]:
        """One line for each thing that works and is probably not meant."""
        lines = []
        dt_ms = policy.action_period_ns / 1e6
        if policy.action_period_ns < self.min_lead_ns and self.anchor == "effect":
            lines.append(
                f"policy {policy.name}: its action_period_ms of {dt_ms:g} is below actions.min_lead_ms "
                f"of {self.min_lead_ns / 1e6:g}: a chunk loses its first step, and a chunk of one all"
            )
        has_deltas = any(d.kind in (Kind.JOINT_DELTA, Kind.EE_DELTA) for d in policy.dimensions)
        if has_deltas and abs(policy.action_period_ns - self.period_ns) > 0.01 * self.period_ns:
            lines.append(
                f"policy {policy.name}: its deltas are for {dt_ms:g} ms each and sent every "
                f"{self.period_ns / 1e6:g} ms: motion has another speed; set control.period_ms to match"
            )
        return lines
