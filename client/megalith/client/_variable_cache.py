"""Local copies of dense variables that are refreshed while steps are computed."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from megalith.client import _arguments
from megalith.errors import DuplicateIds, InvalidRequest
from megalith.schema.checks import require
from megalith.wire import forking

logger = logging.getLogger(__name__)

CachedValues = Mapping[str, NDArray[Any]]


class Fetch(Protocol):
    """A pull of variables that is on its way: a `PendingCall`."""

    @property
    def is_answered(self) -> bool: ...

    def result(self) -> Any: ...

    def abandon(self, reason: Exception) -> object: ...


class Reader(Protocol):
    """What a cache reads from: a `Cluster`."""

    def begin_pull(self, *, variables: Iterable[str]) -> Any: ...


class VariableCache:
    """Variables that a model reads without waiting for the servers. Used by one thread.

        with VariableCache(cluster, ["w", "b"]) as cache:
            for batch in batches:
                with cache.step() as values:         # fetching goes on beside the step
                    gradients = model(batch, values["w"], values["b"])
                    cluster.push(variable_gradients=gradients)

    A step reads the copies, and its gradients go to the variables themselves. The first step waits
    for the values. Each later step starts to fetch when it begins, and takes over what was fetched
    when it ends. So a step reads values that were fetched one step before. While the servers are
    slow, the values may be up to `max_lag_steps` old; after that a step waits. With
    `max_lag_steps=0` each step fetches before it begins.

    A fetch that failed raises in the step that would have used its values, and the next step tries
    again. If no step comes any more, `close` logs the error.
    """

    def __init__(self, cluster: Reader, names: Iterable[str], *, max_lag_steps: int = 2) -> None:
        self._cluster = cluster
        self._names = _arguments.names(names, "cached variables")
        self._max_lag_steps = _arguments.integer(max_lag_steps, "max_lag_steps")

        if len(set(self._names)) < len(self._names):
            raise DuplicateIds(f"a variable is cached twice: {sorted(self._names)}")

        require(max_lag_steps >= 0, f"variable cache: max_lag_steps {max_lag_steps} is negative")

        self._fetch: Fetch | None = None
        self._fetch_began = 0  # steps begun when the fetch under way was started
        self._values: CachedValues = {}
        self._values_began = 0  # the same of the values in use
        self._steps = 0
        self._is_fresh = False
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child keeps the values and fetches by itself from now on."""
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
    def values(self) -> CachedValues:
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
            self._fetch = self._cluster.begin_pull(variables=self._names)

    def assign(self) -> None:
        """Take over what was fetched, once it is there.

        Without a fetch under way the values stay.
        """
        if self._fetch is None:
            return

        fetch = self._fetch
        self._fetch = None
        values: dict[str, NDArray[Any]] = fetch.result().variables
        for value in values.values():
            value.flags.writeable = False

        self._values = values
        self._values_began = self._fetch_began
        self._is_fresh = True

    def refresh(self) -> None:
        """Read the variables now; also the way to start over after a cluster was restarted."""
        if self._fetch is not None:
            self._fetch.abandon(InvalidRequest("the variables are fetched anew"))
            self._fetch = None

        self.fetch()
        self.assign()

    @contextmanager
    def step(self) -> Iterator[CachedValues]:
        """One step of a model: fetch beside it, assign after it."""
        self._steps += 1
        if not self._is_fresh or not self._max_lag_steps:
            self.refresh()
        elif self.lag_steps > self._max_lag_steps:
            self.assign()

        if self._max_lag_steps:
            self.fetch()

        yield self._values
        if self._fetch is not None and self._fetch.is_answered:
            self.assign()

    def close(self) -> None:
        """Wait for a fetch under way."""
        fetch = self._fetch
        self._fetch = None
        if fetch is None:
            return

        try:
            fetch.result()
        except Exception as error:
            logger.warning("the last fetch of variables %s failed: %s", self._names, error)
