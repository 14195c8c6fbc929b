"""Reads ahead of a player, so that the time that reading takes does not delay what is played."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item]):
    """Draws (item, size in bytes) pairs in a thread of its own and hands the items out in order.

    It stays at most `max_items` and `budget_bytes` ahead, or one item where that is larger. An exception of
    the source is raised where the items end.
    """

    def __init__(self, source: Iterable[tuple[Item, int]], max_items: int, budget_bytes: int) -> None:
        self._source = source
        self._max_items = max_items
        self._budget_bytes = budget_bytes
        self._queue: deque[tuple[Item, int]] = deque()
        self._queued_bytes = 0
        self._is_full = False
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

    def wait_until_full(self) -> None:
        """Return once a bound or the end of the source is reached; reading then goes on item by item."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_full or self._is_drained or self._is_stopped)

    def stop(self) -> None:
        """End the iteration; a read that is under way may outlive this by the time it takes."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(timeout=1.0)

    def _wait_for_room(self, size_bytes: int) -> None:
        def has_room() -> bool:
            fits = self._queued_bytes + size_bytes <= self._budget_bytes
            return not self._queue or (fits and len(self._queue) < self._max_items)

        if not has_room():
            self._is_full = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_stopped or has_room())

    def _run(self) -> None:
        try:
            for item, size_bytes in self._source:
                with self._changed:
                    self._wait_for_room(size_bytes)
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
