"""The page docs/faults.md: `python -m vla_edge_ros.evaluation.fault_page --write`."""

import argparse
import sys
from dataclasses import dataclass

from vla_edge_ros.engine.factory import BACKENDS
from vla_edge_ros.evaluation.faults import FAULTS, Fault
from vla_edge_ros.share import share_directory


@dataclass(frozen=True, slots=True)
class Covered:
    """A fault that the tool does not inject, with the test that shows what the node does."""

    what: str
    node: str
    test: str


COVERED = (
    Covered(
        "the engine's process hangs for longer than engine.stall_timeout_ms",
        "FAULT; it is replaced as a dead one is",
        "test/nodes/test_edge_engine.py::"
        "test_an_engine_that_hangs_for_too_long_is_replaced_while_ticks_go_on",
    ),
    Covered(
        "the engine's process dies more often than engine.restart_limit",
        "FAULT until it is configured again; ~/enable is refused",
        "test/nodes/test_edge_engine.py::"
        "test_it_is_replaced_so_often_and_then_stays_a_fault_until_configured_again",
    ),
    Covered(
        "every pass would take 45 ms",
        "it is stopped at its deadline (HOLD_LATE) or refused; no later tick is HOLD_BUSY because of it",
        "test/nodes/test_edge_engine.py::test_a_pass_that_cannot_end_in_time_is_stopped_and_keeps_no_tick_busy",
    ),
    Covered(
        "one pass of 80 ms among passes of 20 ms",
        "admission does not shut: FRESH by the third tick after",
        "test/control/test_controller.py::test_under_the_conformal_rule_one_hiccup_costs_no_refusal",
    ),
    Covered(
        "a checkpoint with a NaN among its weights (engine.backend numpy)",
        "is not configured and says why; nothing has moved",
        "test/nodes/test_nan_weights.py::test_a_checkpoint_with_a_nan_is_refused_at_configure",
    ),
    Covered(
        "a checkpoint whose logits are not finite (engine.backend cuda)",
        "the same",
        "test/engine_cuda/test_configure.py::"
        "test_weights_that_give_no_finite_logits_are_refused_and_everything_is_given_back",
    ),
    Covered(
        "bad images: wrong step, depth, empty, unknown encoding, wrong size",
        "each is refused, counted and named; the next good one is used",
        "test/nodes/test_edge_perceives.py::"
        "test_bad_images_are_refused_counted_and_warned_of_and_the_next_good_one_is_acted_upon",
    ),
    Covered(
        "joint_states or pictures stop while the arm moves",
        "SAFE_STOP, one braking point; goes on when they are back",
        "test/nodes/test_edge_moves.py::"
        "test_without_joint_states_or_camera_an_enabled_arm_is_stopped_and_goes_on_when_they_are_back",
    ),
    Covered(
        "SIGTERM or SIGINT while the arm moves",
        "the arm is brought to rest, then the node ends with exit code 0",
        "test/nodes/test_edge_ends.py::test_a_signal_brings_the_arm_to_rest_and_ends_the_node_cleanly",
    ),
    Covered(
        "a defect in the tick thread",
        "the arm is brought to rest, then the node ends with exit code 1 and says why",
        "test/nodes/test_edge_ends.py::"
        "test_a_defect_in_the_tick_thread_brings_the_arm_to_rest_and_ends_the_node_with_a_word",
    ),
)

PAGE_HEAD = """\
# Faults

Generated from `vla_edge_ros/evaluation/faults.py` by `python -m vla_edge_ros.evaluation.fault_page --write`.

    vla-edge inject engine-killed
    vla-edge inject all --param engine.backend=fake --param engine.model=fake:service_ms=5

`vla-edge inject FAULT ...` runs the real node in a ROS domain of its own, with a 640x480 camera at 60 Hz and
an enabled robot that stands still, and injects each fault once the node has settled. It prints the decisions
before, during and after, and ends with exit code 0 where all that the table says was kept, 1 where something
was not. The decisions are those of [decisions.md](decisions.md), as `~/tick` told them.

Whatever the fault, this must hold too:

- every tick is told once, and those that were wholly missed are counted (`skipped_ticks`);
- no hold outlasts `actions.max_hold_ms`: SAFE_STOP ends it;
- no frame is used twice, or after one that came later;
- FAULT only where the table says so;
- FRESH within 3 s of the end of the fault, or as the table says;
- during the fault at most two late publishes more than the bare loop beside the node counted in all, where
  SCHED_FIFO was granted and the fault does not stop the node's own process; over all faults of a run, with
  the ticks between them, at most two a fault more. This measures the machine too: it wants one that is
  otherwise idle.

The arm is at rest where the newest trajectory of each controller is one point without velocity.

## Injected
"""

PAGE_MIDDLE = """
Each row but those of `engine.backend cuda`, which `scripts/gpu_check.sh faults` runs, is a case of
`test/nodes/test_inject.py`, for the seconds given here; `--seconds` is for longer runs, since within shorter
ones a row may not show what it is to show. A fault that the engine in use cannot have is not injected: a line
says so, and it does not count as passed. A killed process leaves the shared memory of Fast DDS behind, about
20 MB in /dev/shm: `fastdds shm clean` frees it.

## In tests of your own

With `pytest_plugins = ["vla_edge_ros.nodes.fault_fixture"]` in its conftest.py a test can ask for the same:

```python
def test_my_arm_survives_a_camera_that_is_unplugged(inject_fault):
    verdict = inject_fault("camera-unplugged", {"actions.policy_file": "my_arm.yaml"})
    assert verdict["is_kept"], verdict["checks"]
```

Late publishes are left to `vla-edge inject`: they say as much of the machine as of the node.

## Not injected, and tested
"""


def page() -> str:
    """The text of docs/faults.md."""
    lines = ["| fault | what happens | seconds | what the node does |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {_what(f)} | {f.seconds:g} | {_node(f)} |" for f in FAULTS.values()]
    others = ["| what happens | what the node does | test |", "|---|---|---|"]
    others += [f"| {row.what} | {row.node} | `{row.test}` |" for row in COVERED]
    return "\n".join([PAGE_HEAD, *lines, PAGE_MIDDLE, *others, ""])


def _what(fault: Fault) -> str:
    if fault.backends == BACKENDS:
        return fault.what
    return f"{fault.what}; engine.backend {' or '.join(fault.backends)}"


def _node(fault: Fault) -> str:
    if not fault.least_fresh:
        return fault.node
    return f"{fault.node} (at least {100 * fault.least_fresh:g} % of the ticks)"


def main(argv: list[str] | None = None) -> int:
    """Write docs/faults.md, or say that it is out of date."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the file; otherwise only compare")
    path = share_directory() / "docs/faults.md"
    if parser.parse_args(argv).write:
        path.write_text(page(), encoding="utf-8")
    is_current = path.exists() and path.read_text(encoding="utf-8") == page()
    print(f"docs/faults.md: {'current' if is_current else 'out of date, run with --write'}")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
