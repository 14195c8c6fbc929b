"""What a demo's run comes to: its document, and proof that a replay at its own times gives the run again."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.bags import Bag
from vla_edge_ros.evaluation.film import film_frames
from vla_edge_ros.evaluation.filmstrip import FilmFrame
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.virtual_run import replay_recorded
from vla_edge_ros.progress import told


def evaluate(
    bag: Bag, topic: str, values: dict, recorded: RecordedRun, policies: Iterable[str], console: Console
) -> tuple[dict, dict[str, list[FilmFrame]]]:
    """The demo's document, and what each policy would remember at the end; the run's own is always one."""
    live = run_document.outcome(recorded.ticks)
    strips: dict[str, list[FilmFrame]] = {}
    evictions: dict[str, int] = {}
    for policy in dict.fromkeys((*policies, values["memory.policy"])):
        with told(f"replaying the run under {policy}"):
            variant = values | recorded.engine_plan() | {"memory.policy": policy}
            replayed = replay_recorded(bag, topic, variant, recorded)
            strips[policy] = film_frames(bag, topic, replayed.remembered)
        evictions[policy] = len(replayed.journal)
        if policy == values["memory.policy"]:
            again = replayed.records
    is_equal = _compare(live, again, console)
    bare_loop = recorded.end["bare_loop"]
    document = {
        "kind": "demo",
        **run_document.header(bag.path.name, topic, values, recorded.run["engine"]),
        **run_document.summarise(recorded.ticks, recorded.begin["frame"]),
        "bare_loop_late": bare_loop["late"],
        "bare_loop": bare_loop,
        "evictions": evictions,
        "replay_is_equal": is_equal,
        **live,
        **recorded.to_document(),
        "records": [record | run_document.row(record) for record in recorded.ticks],
    }
    return document, strips


def _compare(live: dict, records: Sequence[TickRecord], console: Console) -> bool:
    """Whether the replay gave the run again, which is said."""
    again = run_document.outcome([record.to_json() for record in records])
    differing = [part for part in run_document.OUTCOME if again[part] != live[part]]
    if differing:
        console.print(
            f"replayed at its own times the run has other {', '.join(differing)}",
            style="bold red",
            soft_wrap=True,
        )
    else:
        console.print(
            "replayed at its own times the run has the same decisions, actions and journal", soft_wrap=True
        )
    return not differing
