"""How fast a save goes: as fast as it can, unless somebody trains meanwhile.

A save that takes all cores, and the interpreter, leaves training a seventh of its speed. So it
works in short turns, and rests seven times as long after each while pushes come.

All rests together have an end: a save that is given up after --save-timeout-s is worth nothing, and
the next one would end no sooner. And a rest ends when nobody pushes any more: the last save of a
job may be waiting for this one.
"""

import time
from collections.abc import Callable

_REST = 7.0  # seconds of rest for one of work: training keeps 70 % of its speed; with 5 it kept 66
_REST_SHARE = 1 / 3  # of the time that a save may take
_LOOK_S = 0.5  # between two looks at whether pushes still come, during a rest
DEFAULT_TIMEOUT_S = 3600.0  # that of --save-timeout-s


class Pace:
    """For the one thread that saves. `num_pushes` counts the pushes that were applied so far.

    `timeout_s` is how long the save may take. `check` is called between turns and during rests: it
    raises once nobody wants the save any more.
    """

    def __init__(
        self,
        num_pushes: Callable[[], int],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._num_pushes = num_pushes
        self._clock = clock
        self._sleep = sleep
        self._check = check
        self._left_s = timeout_s * _REST_SHARE
        self._pushes = num_pushes()
        self._began_s = clock()

    def rest(self) -> None:
        """End a turn of work. Pushes during the rest before it count too: work may hold them up."""
        worked_s = self._clock() - self._began_s
        rest_s = min(_REST * worked_s, self._left_s)
        self._check()
        while rest_s > 0 and self._has_new_pushes():
            nap_s = min(rest_s, _LOOK_S)
            self._sleep(nap_s)
            rest_s -= nap_s
            self._left_s -= nap_s
            self._check()

        self._began_s = self._clock()

    def _has_new_pushes(self) -> bool:
        """Whether pushes were applied since this was asked the last time."""
        before = self._pushes
        self._pushes = self._num_pushes()
        return self._pushes != before


def full_speed() -> Pace:
    """Of a save beside which nobody trains."""
    return Pace(lambda: 0)
