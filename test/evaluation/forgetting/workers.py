"""Jobs for tests of the pool; a worker imports this module by its name."""

import os
import signal
import time
from pathlib import Path


def double(job):
    return [{"value": 2 * job, "pid": os.getpid(), "threads": os.environ["OPENBLAS_NUM_THREADS"]}]


def die_once(job):
    """A job is a file: the worker is killed the first time that it is begun."""
    path = Path(job)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"job": path.name}]


def die_on_three(job):
    if job == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"value": job}]


def raise_on_three(job):
    if job == 3:
        raise ValueError("three is refused\nfor good")
    return [{"value": job}]


def sleep_long(job):
    time.sleep(60)
    return []


def raise_after_two(job):
    yield {"value": 0}
    yield {"value": 1}
    raise ValueError("the third is refused")


def tell_blocked_signals(job):
    return [{"value": signal.pthread_sigmask(signal.SIG_BLOCK, [])}]
