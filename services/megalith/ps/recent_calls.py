"""How busy a server is now: calls per second and their 99th percentile."""

import threading
import time
from collections import deque
from collections.abc import Callable

from megalith.runtime.monitoring.metrics import Metrics

_WINDOW_S = 5.0
_QUANTILE = 0.99

CallsWithin = dict[float, float]  # calls answered within that many seconds, since the start


class RecentCalls:
    """Compares the RPC histogram with what it was some seconds ago; a call costs nothing more.

    The percentile is exact to a bucket of the histogram and interpolated inside it. `_lock` guards
    the past.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._past: deque[tuple[float, CallsWithin]] = deque([(clock(), {})])

    def figures(self) -> tuple[float, float]:
        """(calls per second, 99th percentile in seconds) of the last few seconds.

        (0, 0) without calls.
        """
        counts = self._counts()
        now = self._clock()

        with self._lock:
            self._past.append((now, counts))

            # The first stays until the second is a whole window old.
            while len(self._past) > 2:
                second, _ = self._past[1]
                if now - second < _WINDOW_S:
                    break

                self._past.popleft()

            since, before = self._past[0]

        recent = []
        for bound in sorted(counts):
            calls = counts[bound] - before.get(bound, 0.0)
            recent.append((bound, calls))

        total = recent[-1][1] if recent else 0.0
        seconds = now - since
        if total <= 0 or seconds <= 0:
            return 0.0, 0.0

        return total / seconds, _quantile(recent, _QUANTILE * total)

    def _counts(self) -> CallsWithin:
        counts: CallsWithin = {}

        for metric in self._metrics.rpc_seconds.collect():
            for sample in metric.samples:
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    counts[bound] = counts.get(bound, 0.0) + sample.value

        return counts


def _quantile(cumulative: list[tuple[float, float]], rank: float) -> float:
    """The time within which `rank` calls were answered.

    The last bucket is open and gives its lower bound.
    """
    lower = 0.0
    below = 0.0

    for bound, count in cumulative:
        if count >= rank:
            if bound == float("inf"):
                return lower

            share = (rank - below) / (count - below)
            return lower + (bound - lower) * share

        lower = bound
        below = count

    return lower
