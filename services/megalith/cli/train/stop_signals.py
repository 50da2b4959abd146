"""Which Ctrl-C counts: the first one stops the job, and a later one may end the save that follows.

One Ctrl-C may arrive twice: `timeout -s INT` sends it to the process and then to its group.
"""

import signal
import time
from collections.abc import Callable

_SAME_S = 1.0  # a person who has read what the first one did takes longer


class StopSignals:
    """SIGINT and SIGTERM as KeyboardInterrupt, in the main thread.

    A signal within a second of the first one is that one again. Between `hold` and `listen` none
    counts: nobody has yet been told what another one would do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_s: float | None = None
        self._is_held = False

    def install(self) -> None:
        # SIGINT too: a shell starts background jobs with it ignored, and Python then leaves it so.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.take)

    def ignore(self) -> None:
        """From here on for good."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def hold(self) -> None:
        self._is_held = True

    def listen(self) -> None:
        self._is_held = False

    def take(self, _number: int, _frame: object) -> None:
        """What a signal does."""
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        elif self._is_held or now_s - self._first_s < _SAME_S:
            return

        raise KeyboardInterrupt
