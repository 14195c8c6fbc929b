"""Replaces an engine process that died or hangs, while the tick thread goes on publishing."""

import queue
import threading
from collections.abc import Callable

from vla_edge_ros.control.events import EngineReplaced
from vla_edge_ros.engine.interface import Engine, EngineError


class EngineSupervisor:
    """Waits for faults on a thread of its own; a fresh engine takes seconds, a tick must not wait for it.

    restart_limit: after this many attempts to replace it a further fault is final.
    post: hands `EngineReplaced` to the control thread.
    """

    def __init__(
        self, engine: Engine, restart_limit: int, logger, post: Callable[[EngineReplaced], None]
    ) -> None:
        self._engine = engine
        self._restart_limit = restart_limit
        self._logger = logger
        self._post = post
        self._faults: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.restarts = 0
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def replace(self, error: str) -> None:
        """The engine has failed with `error`; called from the tick thread, returns at once."""
        self._faults.put(error)

    def close(self) -> None:
        """End the thread; waits for a replacement that is under way, so the engine is to abandon it."""
        self._faults.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (error := self._faults.get()) is not None:
            self._logger.error(error)
            if self.restarts >= self._restart_limit:
                self._logger.fatal(
                    f"the engine failed after {self.restarts} replacements; not replaced again "
                    "(engine.restart_limit)"
                )
                continue
            self.restarts += 1
            self._engine.close()
            try:
                info = self._engine.configure()
            except EngineError as failure:
                self._faults.put(f"no fresh engine: {failure}")
                continue
            self._logger.warning(
                f"engine replaced ({self.restarts} of {self._restart_limit}); call ~/enable to move again"
            )
            self._post(EngineReplaced(info))
