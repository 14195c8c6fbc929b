"""Jobs on processes of this machine, or on a Ray cluster: the same function, the same rows."""

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from vla_edge_ros.engine.linux import die_with_parent
from vla_edge_ros.errors import UserError

J = TypeVar("J")

MAX_ATTEMPTS = 3
"""Times that a job is begun before it is given up: a worker may be killed for memory, or by a user."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: its rows; `error`, one line, where it was given up after those."""

    job: Any
    rows: list[dict]
    error: str = ""


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    job: Any = None
    attempt: int = 0


def run_local(
    jobs: Sequence[J], function: Callable[[J], Iterable[dict]], n_workers: int
) -> Iterator[Outcome]:
    """Outcomes as they come, from at most `n_workers` processes of one BLAS thread each.

    A job that raises is given up at once, since it would raise again; one whose worker dies is begun again
    by a fresh worker, `MAX_ATTEMPTS` times in all. The others go on. Workers end with this generator.
    """
    waiting = deque((job, 1) for job in jobs)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.job is not None for worker in workers):
            n_open = len(waiting) + sum(worker.job is not None for worker in workers)
            while len(workers) < min(n_workers, n_open):
                workers.append(_start(function))
            for worker in workers:
                if worker.job is None and waiting:
                    worker.job, worker.attempt = waiting.popleft()
                    with contextlib.suppress(OSError):  # it died while it had nothing to do: seen below
                        worker.pipe.send(worker.job)
            for pipe in wait([worker.pipe for worker in workers if worker.job is not None]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                job, worker.job = worker.job, None
                try:
                    rows, error = worker.pipe.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    _end(worker)
                    if worker.attempt < MAX_ATTEMPTS:
                        waiting.append((job, worker.attempt + 1))
                        continue
                    rows, error = [], f"its worker died {MAX_ATTEMPTS} times"
                yield Outcome(job, rows, error)
    finally:
        for worker in workers:
            _end(worker)


def run_on_ray(jobs: Sequence[J], function: Callable[[J], Iterable[dict]], address: str) -> Iterator[Outcome]:
    """Outcomes as they come, from the Ray cluster at `address` (`auto`: the one that this machine is in).

    A job whose worker dies is begun again, `MAX_ATTEMPTS` times in all. The files that jobs name must be
    there on every machine. Raises UserError where there is no such cluster.
    """
    import ray

    environment = {"env_vars": _ONE_THREAD}
    try:
        ray.init(address=address, runtime_env=environment, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--address {address}: no Ray cluster answers: {error}") from None
    try:
        remote = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_guarded(function))
        running = {remote.remote(job): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                yield Outcome(job, *ray.get(done))
            except ray.exceptions.RayError as error:
                yield Outcome(job, [], " ".join(str(error).split())[:200])
    finally:
        ray.shutdown()


def _guarded(function: Callable[[J], Iterable[dict]]) -> Callable[[J], tuple[list[dict], str]]:
    def guarded(job: J) -> tuple[list[dict], str]:
        rows = []
        try:
            for row in function(job):
                rows.append(row)
        except Exception as error:
            return rows, " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return rows, ""

    return guarded


def _start(function: Callable[[Any], Iterable[dict]]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    # A worker has Ctrl-C blocked from its first instruction: it is ended from here, without a traceback.
    resource_tracker.ensure_running()  # unblocks SIGINT where it is started
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = context.Process(target=_work, args=(theirs, function, os.getpid()), daemon=True)
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: Connection, function: Callable[[Any], Iterable[dict]], parent_pid: int) -> None:
    die_with_parent(parent_pid)
    guarded = _guarded(function)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(guarded(job))
        except BrokenPipeError:
            return


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()
