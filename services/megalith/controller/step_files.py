"""Files in the model directory by which an operator says when something is to happen.

dump_<step>      once the job is at that step: save
stop_<step>      once the job is at that step: every worker ends its share, and the job saves
limit_req_time   holds a Unix time: once data of that time is trained, the same as stop
"""

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

from megalith.controller.guarded import guarded
from megalith.errors import MegalithError
from megalith.runtime.files import open_plain

logger = logging.getLogger(__name__)

LIMIT = "limit_req_time"
_LOOK_S = 1.0
_MAX_BYTES = 64  # a number; a larger file is somebody's mistake
_AT_STEP = re.compile(r"(dump|stop)_(.*)")


class StepFiles:
    """Looks for such files and obeys each of them once. `run` belongs to one thread.

    `stop` gets the name of the file that says so.

    Files are left where they are. Those of steps that had passed before this controller began are
    not obeyed: somebody left them behind. Monolith looks at every hundredth step, and misses files
    of the steps between.
    """

    def __init__(
        self,
        model_dir: Path,
        first_step: int,
        *,
        step: Callable[[], int],
        req_time_s: Callable[[], int],
        save: Callable[[], object],
        stop: Callable[[str], object],
    ) -> None:
        self._model_dir = model_dir
        self._first_step = first_step
        self._step = step
        self._req_time_s = req_time_s
        self._by_verb = {"dump": lambda _: save(), "stop": stop}
        self._handled: set[str] = set()  # names of files
        self._said = ""  # of the limit, what was last complained about

    def run(self, stopping: threading.Event, is_on: bool) -> None:
        """Look every second, on the thread that calls."""
        look = guarded("looking for files of an operator", self.look)
        while is_on and not stopping.wait(_LOOK_S):
            look()

    def look(self) -> None:
        """Obey what is due."""
        for path in sorted(self._model_dir.glob("*_*")):
            match = _AT_STEP.fullmatch(path.name)
            if match and path.name not in self._handled:
                self._look_at(path.name, match[1], match[2])

        self._look_at_limit()

    def _look_at(self, name: str, verb: str, digits: str) -> None:
        if not re.fullmatch(r"[0-9]{1,18}", digits):
            logger.warning("%s is not obeyed: %r is no step", name, digits)
            self._handled.add(name)
            return

        step = int(digits)
        if step <= self._first_step:
            logger.info("%s is not obeyed: this run began at step %d", name, self._first_step)
            self._handled.add(name)
        elif step <= self._step():
            self._obey(name, verb)

    def _obey(self, name: str, verb: str) -> None:
        """One that fails is tried again."""
        try:
            self._by_verb[verb](name)
        except MegalithError as error:
            logger.warning("%s failed and will be tried again: %s", name, error)
            return

        self._handled.add(name)
        logger.info("%s: done at step %d", name, self._step())

    def _look_at_limit(self) -> None:
        if LIMIT in self._handled:
            return

        limit_s = self._limit_s()
        reached_s = self._req_time_s()
        if 0 < limit_s <= reached_s:
            logger.info("data of %d is trained, %s is %d", reached_s, LIMIT, limit_s)
            self._obey(LIMIT, "stop")

    def _limit_s(self) -> int:
        """What the file says; -1 without one, or with one that says nothing."""
        try:
            with open_plain(self._model_dir / LIMIT, "rb") as file:
                text = file.read(_MAX_BYTES).decode(errors="replace").strip()

            return int(text)
        except FileNotFoundError:
            return -1
        except (OSError, ValueError) as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("%s is not obeyed: %s", LIMIT, error)

            return -1
