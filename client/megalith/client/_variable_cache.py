"""Local copies of dense variables that are refreshed while steps are computed."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from megalith.client import _arguments
from megalith.wire import forking
from megalith.wire.errors import DuplicateKeys
from megalith.wire.validation import require

logger = logging.getLogger(__name__)

Values = Mapping[str, NDArray[Any]]


class Reader(Protocol):
    """What a cache reads from: a `Cluster`."""

    def pull(self, *, variables: Iterable[str]) -> Any: ...


class VariableCache:
    """Variables that a model reads without waiting for the servers. Used by one thread.

        with VariableCache(cluster, ["w", "b"]) as cache:
            for batch in batches:
                with cache.step() as values:         # fetching goes on beside the step
                    gradients = model(batch, values["w"], values["b"])
                    cluster.push(variables=gradients)

    Reads come from the copies, gradients go to the variables themselves. The first step waits for the values; each
    later one starts fetching when it begins and takes over what has been fetched when it ends, so that what a step
    reads was fetched one step before, or up to `max_lag_steps` while the servers are slow; then a step waits for them.
    0 fetches before each step.

    A failed fetch raises in the step that would have used it, and the next step tries again. One that no step comes for
    is logged by `close`.
    """

    def __init__(self, cluster: Reader, names: Iterable[str], *, max_lag_steps: int = 2) -> None:
        self._cluster, self._names = cluster, _arguments.names(names, "cached variables")
        self._max_lag_steps = max_lag_steps = _arguments.integer(max_lag_steps, "max_lag_steps")
        if len(set(self._names)) < len(self._names):
            raise DuplicateKeys(f"a variable is cached twice: {sorted(self._names)}")
        require(max_lag_steps >= 0, f"variable cache: max_lag_steps {max_lag_steps} is negative")
        self._thread = ThreadPoolExecutor(1, "variable-cache")
        self._fetch: Future[Values] | None = None
        self._fetch_began = 0  # steps begun when the fetch under way was started
        self._values: Values = {}
        self._values_began = 0  # the same of the values in use
        self._steps = 0
        self._is_fresh = False
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child keeps the values and fetches by itself from now on."""
        self._thread = ThreadPoolExecutor(1, "variable-cache")
        self._fetch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def values(self) -> Values:
        """The copies, which do not change under a reader; fetched first if there are none yet."""
        if not self._is_fresh:
            self.refresh()
        return self._values

    @property
    def lag_steps(self) -> int:
        """How many steps ago the values in use were asked for."""
        return self._steps - self._values_began

    def fetch(self) -> None:
        """Start to read the variables, unless that is under way."""
        if self._fetch is None:
            self._fetch_began = self._steps
            self._fetch = self._thread.submit(self._read)

    def assign(self) -> None:
        """Take over what was fetched, once it is there; without a fetch under way the values stay."""
        if self._fetch is None:
            return
        fetch, self._fetch = self._fetch, None
        self._values, self._values_began, self._is_fresh = fetch.result(), self._fetch_began, True

    def refresh(self) -> None:
        """Read the variables now; also the way to start over after a cluster was restarted."""
        if self._fetch is not None:
            self._fetch.cancel()
            self._fetch = None
        self.fetch()
        self.assign()

    @contextmanager
    def step(self) -> Iterator[Values]:
        """One step of a model: fetch beside it, assign after it."""
        self._steps += 1
        if not self._is_fresh or not self._max_lag_steps:
            self.refresh()
        elif self.lag_steps > self._max_lag_steps:
            self.assign()
        if self._max_lag_steps:
            self.fetch()
        yield self._values
        if self._fetch is not None and self._fetch.done():
            self.assign()

    def close(self) -> None:
        """Wait for a fetch under way and end the thread."""
        self._thread.shutdown(cancel_futures=True)
        fetch = self._fetch
        self._fetch = None
        if fetch is not None and not fetch.cancelled() and fetch.exception() is not None:
            logger.warning(
                "the last fetch of variables %s failed: %s", self._names, fetch.exception()
            )

    def _read(self) -> Values:
        values: dict[str, NDArray[Any]] = self._cluster.pull(variables=self._names).variables
        for value in values.values():
            value.flags.writeable = False
        return values
