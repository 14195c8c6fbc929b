"""Reads ahead of a player, so that the time that reading takes does not delay what is played."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item]):
    """Draws (item, size in bytes) pairs in a thread of its own and hands the items out in order.

    It stays at most `budget_bytes` ahead, or one item where that is larger. An exception of the source is
    raised where the items end.
    """

    def __init__(self, source: Iterable[tuple[Item, int]], budget_bytes: int) -> None:
        self._source = source
        self._budget_bytes = budget_bytes
        self._queue: deque[tuple[Item, int]] = deque()
        self._queued_bytes = 0
        self._is_drained = False
        self._is_stopped = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def __iter__(self) -> Iterator[Item]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_drained or self._is_stopped)
                if self._is_stopped:
                    return
                if not self._queue:
                    if self._error is not None:
                        raise self._error
                    return
                item, size_bytes = self._queue.popleft()
                self._queued_bytes -= size_bytes
                self._changed.notify_all()
            yield item

    def stop(self) -> None:
        """End the iteration and the thread; safe to call from a signal's thread and twice."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            for item, size_bytes in self._source:
                with self._changed:
                    self._changed.wait_for(
                        lambda size=size_bytes: (
                            self._is_stopped
                            or not self._queue
                            or self._queued_bytes + size <= self._budget_bytes
                        )
                    )
                    if self._is_stopped:
                        return
                    self._queue.append((item, size_bytes))
                    self._queued_bytes += size_bytes
                    self._changed.notify_all()
        except Exception as error:
            self._error = error
        finally:
            with self._changed:
                self._is_drained = True
                self._changed.notify_all()
