"""The engine's own process: `python -m vla_edge_ros.engine.child --fd N --frames-fd M --parent-pid PID`.

Started by `ProcessEngine`. N is one end of a mailbox pair, M the frame buffer. It reads the EngineSpec as
JSON, configures the engine, answers with the EngineInfo as JSON or one line of error, then serves work until
the mailbox is closed. A failed pass is answered with FAILED and ends the process: a CUDA fault is sticky.
"""

import argparse
import contextlib
import gc
import json
import os
import socket
import sys
import time
import traceback
from dataclasses import asdict

from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import (
    Engine,
    EngineError,
    EngineInfo,
    EngineSpec,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.linux import die_with_parent
from vla_edge_ros.engine.mailbox import Close, Kind, Mailbox, MailboxClosed, Order, Text
from vla_edge_ros.perception.frame_buffer import FrameBuffer

_WAIT_SLICE_NS = 1_000_000_000
_MAX_LINE = 500


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--fd", "--frames-fd", "--parent-pid"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent_pid)
    _step_below_parent()
    end = socket.socket(fileno=arguments.fd)
    try:
        spec = EngineSpec(**json.loads(Mailbox(end, n_slots=0).receive(None).text))
        mailbox = Mailbox(end, spec.n_slots)
        engine = _configure(mailbox, spec, FrameBuffer.attach(arguments.frames_fd))
        return 1 if engine is None else serve(mailbox, engine)
    except MailboxClosed:
        return 0


def _step_below_parent() -> None:
    """Under SCHED_FIFO, let the parent's tick and camera threads preempt a pass; an equal could not."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        priority = max(1, os.sched_getparam(0).sched_priority - 1)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def _configure(mailbox: Mailbox, spec: EngineSpec, frames: FrameBuffer) -> Engine | None:
    try:
        engine = make_engine(spec, frames)
        info = engine.configure()
    except Exception as error:
        if not isinstance(error, EngineError):
            traceback.print_exc()
        mailbox.send(Text(Kind.ERROR, _one_line(error)))
        return None
    gc.collect()
    gc.freeze()
    mailbox.send(Text(Kind.INFO, info_to_json(info)))
    return engine


def serve(mailbox: Mailbox, engine: Engine) -> int:
    """Run one piece of work after another; the exit code: 0 after Close, 1 after a failure."""
    with contextlib.closing(engine):
        while True:
            order = mailbox.receive(None)
            if isinstance(order, Close):
                return 0
            try:
                result = _run(engine, order)
            except Exception as error:
                traceback.print_exc()
                result = WorkResult(order.work.work_id, WorkStatus.FAILED, error=_one_line(error))
            mailbox.send(result)
            if result.status is WorkStatus.FAILED:
                return 1


def _run(engine: Engine, order: Order) -> WorkResult:
    for move in order.stashed:
        engine.stash(int(move[0]), move[1:])
    if len(order.evicted):
        engine.evict(order.evicted)
    for move in order.restored:
        engine.restore(int(move[0]), move[1:])
    engine.submit(order.work)
    while (result := engine.wait(time.monotonic_ns() + _WAIT_SLICE_NS)) is None:
        pass
    return result


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    line = text if isinstance(error, EngineError) else f"{type(error).__name__}: {text}"
    return line[:_MAX_LINE]


def info_to_json(info: EngineInfo) -> str:
    return json.dumps(asdict(info))


def info_from_json(text: str) -> EngineInfo:
    fields = json.loads(text)
    return EngineInfo(**{**fields, "notes": tuple(fields["notes"])})


if __name__ == "__main__":
    sys.exit(main())
