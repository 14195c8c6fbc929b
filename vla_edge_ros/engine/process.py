"""An engine in a child process, seen through the same protocol as one in this process.

The interpreter lock of the control process stays free while a pass runs, and a child that has failed for good
(a CUDA fault is sticky) is replaced by `close` and `configure` while the node goes on publishing holds.
"""

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from vla_edge_ros.engine.child import info_from_json
from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
    pinned,
)
from vla_edge_ros.engine.linux import process_cpu_ticks, process_memory, start_bound_module
from vla_edge_ros.engine.mailbox import (
    Close,
    Kind,
    Mailbox,
    MailboxClosed,
    MailboxFull,
    Order,
    Text,
    connected_pair,
)
from vla_edge_ros.perception.frame_buffer import FrameBuffer

CLOSE_TIMEOUT_S = 1.0
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_REAP_TIMEOUT_S = 0.5
_LOOK_INTERVAL_NS = 100_000_000
_NOT_CONFIGURED = "the engine is not configured"
_CLOSED = "the engine is closed"
_CLOSED_EARLY = "the engine was closed while configuring"


class ProcessEngine:
    """Runs `make_engine(spec, frames)` in a child process; configure, use, close, and configure again.

    submit, wait and evict belong to one thread; configure and close may come from another, and close ends
    a wait in progress. A child that dies, stops reading or fails a pass is a failed engine: submit and evict
    then do nothing and every wait returns FAILED at once, until the next `configure`.

    stall_timeout_s: `configure` gives up on a child that has used no processor time for so long; a child
    that works, however slowly it loads, has the time it needs.
    should_abandon: asked ten times a second while configuring, which fails as soon as it says yes.
    """

    def __init__(
        self,
        spec: EngineSpec,
        frames: FrameBuffer,
        stall_timeout_s: float = 60.0,
        should_abandon: Callable[[], bool] = lambda: False,
    ):
        self._spec = spec
        self._frames = frames
        self._stall_timeout_s = stall_timeout_s
        self._should_abandon = should_abandon
        self._process: subprocess.Popen | None = None
        self._mailbox: Mailbox | None = None
        self._in_flight: int | None = None
        self._evicted: list[np.ndarray] = []
        self._stashed: list[np.ndarray] = []
        self._restored: list[np.ndarray] = []
        self._failure = _NOT_CONFIGURED
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._closing = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the child, None before `configure` and after `close`."""
        process = self._process
        return None if process is None else process.pid

    def rss_bytes(self) -> int:
        """Resident memory of the child, shared pages included; 0 where there is none."""
        process = self._process
        return 0 if process is None else process_memory(process.pid)

    def configure(self) -> EngineInfo:
        """Start the child anew and wait until it is ready. Raises EngineError with the child's one line."""
        self.close()
        try:
            info = self._await_info(self._start())
            with self._closing:
                if self._process is None:
                    raise EngineError(_CLOSED_EARLY)
                self._failure = ""
            # A replacement must compute the same bits, whatever it would choose itself.
            self._spec = pinned(self._spec, info)
            return info
        except BaseException:
            self.close()
            raise

    def submit(self, work: PromptWork | FrameWork) -> None:
        """Hand work to the child; never blocks. Raises EngineBusy, or ValueError for lists beyond n_slots."""
        if self._in_flight is not None and not self._failure:
            raise EngineBusy(f"work {work.work_id} was submitted while work {self._in_flight} is unclaimed")
        self._send(work)
        self._in_flight = work.work_id
        self._forget_moves()

    def wait(self, until_ns: int) -> WorkResult | None:
        """The result in flight, or None once the steady clock reaches `until_ns`.

        A dead child gives FAILED at once, naming its exit code or signal. The result's arrays are views on
        one buffer, valid until the next result is received.
        """
        # Only close and configure hold this lock for long, and then there is nothing to wait for.
        if not self._failure and self._receiving.acquire(blocking=False):
            try:
                message = self._receive(until_ns)
            finally:
                self._receiving.release()
            if not self._failure:
                if message is not None:
                    self._in_flight = None
                return message
        failed_id, self._in_flight = self._in_flight, None
        return WorkResult(failed_id or 0, WorkStatus.FAILED, error=self._failure or _CLOSED)

    def evict(self, slots: np.ndarray) -> None:
        """Kept for the next work, which takes them along."""
        self._evicted.append(slots)

    def stash(self, place: int, slots: np.ndarray) -> None:
        """As `evict`."""
        self._stashed.append(np.concatenate([[place], slots]))

    def restore(self, place: int, slots: np.ndarray) -> None:
        """As `evict`."""
        self._restored.append(np.concatenate([[place], slots]))

    def close(self) -> None:
        """End the child: asked, and killed after one second. Safe to call twice and from another thread."""
        with self._closing:
            process, mailbox = self._process, self._mailbox
            if process is None:
                return
            self._failure = _CLOSED
            with contextlib.suppress(MailboxFull, MailboxClosed), self._sending:
                mailbox.send(Close())
            try:
                process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CLOSE_TIMEOUT_S)
            # The child's end is closed now, so a wait in progress has returned or is about to.
            with self._receiving, self._sending:
                mailbox.close()
                self._process = self._mailbox = None

    def _receive(self, until_ns: int) -> WorkResult | None:
        if self._failure:
            return None
        try:
            result = self._mailbox.receive(until_ns)
        except MailboxClosed:
            # A close in another thread has given its own reason.
            self._failure = self._failure or f"engine process {self._describe_end(until_ns)}"
            return None
        if result is not None:
            if result.status is WorkStatus.FAILED:
                self._failure = result.error or "the engine failed without a reason"
            elif result.work_id != self._in_flight:
                self._failure = f"engine process answered work {result.work_id}, asked was {self._in_flight}"
        return result

    def _send(self, work: PromptWork | FrameWork) -> None:
        order = Order(work)
        if self._evicted:
            order.evicted = np.concatenate(self._evicted)
        if self._stashed:
            order.stashed = np.stack(self._stashed)
        if self._restored:
            order.restored = np.stack(self._restored)
        # Closed: the next wait reads what the child said before it ended, then how it ended. Full: it hangs.
        with self._sending, contextlib.suppress(MailboxClosed, MailboxFull):
            if not self._failure:
                self._mailbox.send(order)

    def _forget_moves(self) -> None:
        for moves in (self._evicted, self._stashed, self._restored):
            moves.clear()

    def _start(self) -> int:
        ours, childs = connected_pair()
        n_threads = self._spec.blas_threads
        try:
            with childs:
                mailbox = Mailbox(ours, self._spec.n_slots)
                mailbox.send(Text(Kind.SPEC, json.dumps(asdict(self._spec))))
                process = start_bound_module(
                    "vla_edge_ros.engine.child",
                    ["--fd", str(childs.fileno()), "--frames-fd", str(self._frames.fd)],
                    pass_fds=(childs.fileno(), self._frames.fd),
                    environment=dict.fromkeys(_BLAS_VARIABLES, str(n_threads)) if n_threads else {},
                )
        except (OSError, ValueError) as error:
            ours.close()
            raise EngineError(f"engine process cannot be started: {error}") from error
        self._in_flight = None
        self._forget_moves()
        self._failure = _NOT_CONFIGURED
        self._mailbox, self._process = mailbox, process
        return process.pid

    def _await_info(self, pid: int) -> EngineInfo:
        cpu_ticks = 0
        progress_ns = time.monotonic_ns()
        while (message := self._receive_answer()) is None:
            if self._should_abandon():
                raise EngineError(_CLOSED_EARLY)
            now_ns = time.monotonic_ns()
            previous_ticks, cpu_ticks = cpu_ticks, process_cpu_ticks(pid)
            if cpu_ticks != previous_ticks:
                progress_ns = now_ns
            elif now_ns - progress_ns > self._stall_timeout_s * 1e9:
                raise EngineError(
                    f"engine process hangs or is stopped: it used no processor time in "
                    f"{self._stall_timeout_s:g} s of configuring"
                )
        if message.kind is Kind.ERROR:
            raise EngineError(message.text)
        return info_from_json(message.text)

    def _receive_answer(self) -> Text | None:
        with self._receiving:
            try:
                if self._failure == _CLOSED:
                    raise EngineError(_CLOSED_EARLY)
                return self._mailbox.receive(time.monotonic_ns() + _LOOK_INTERVAL_NS)
            except MailboxClosed:
                if self._failure == _CLOSED:
                    raise EngineError(_CLOSED_EARLY) from None
                end = self._describe_end(time.monotonic_ns() + _LOOK_INTERVAL_NS)
                hint = " (out of memory?)" if self._process.returncode == -signal.SIGKILL else ""
                raise EngineError(f"engine process {end} while configuring{hint}") from None

    def _describe_end(self, until_ns: int) -> str:
        # The end of file comes a moment before the process can be reaped.
        seconds = min(_REAP_TIMEOUT_S, (until_ns - time.monotonic_ns()) / 1e9)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0, seconds))
            return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "closed its mailbox and has not ended yet"
