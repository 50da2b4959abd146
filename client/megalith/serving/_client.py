"""The client of serving replicas."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import InvalidRequest, NotReady, TooStale
from megalith.protos import prediction_pb2, replica_pb2
from megalith.serving._answers import (
    F32,
    FeaturesResult,
    Freshness,
    LookupResult,
    PredictResult,
    freshness_from_proto,
)
from megalith.serving._asking import Asking, Attempt
from megalith.serving._computed import FeaturesCall, PredictCall
from megalith.serving._lookups import Lookup, TableIds
from megalith.serving._replica_pool import ReplicaLink, ReplicaPool
from megalith.serving._values import Dense, Values, features_to_proto, ids_of, set_dense
from megalith.wire import codec
from megalith.wire.routing import NUM_BUCKETS, buckets_of, even_owners, share_of_buckets

_LONGEST_S = 1e9
_NO_BUCKETS = np.zeros(NUM_BUCKETS, np.bool_)  # every replica has all variables
_ALL_BUCKETS = share_of_buckets(0, 0)


class ServingClient:
    """Reads rows, variables, features and predictions from replicas, in turns. Thread-safe.

    A replica that does not answer, or is too stale, is passed over, and another one asked, until
    the timeout of `connect`. If none answers by then, the last error is raised.
    """

    def __init__(
        self,
        replicas: ReplicaPool,
        asking: Asking,
        max_staleness_s: float,
        on_close: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._replicas = replicas
        self._asking = asking
        self._max_staleness_s = max_staleness_s
        self._on_close = on_close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._replicas.close()
        self._asking.close()
        self._on_close()

    def lookup(
        self, ids: Mapping[str, ArrayLike], *, max_staleness_s: float | None = None
    ) -> LookupResult:
        """The rows of ids, by table; zeros for an id without a row.

        `max_staleness_s` refuses answers that are staler; None takes that of `connect`.
        """
        if not isinstance(ids, Mapping):
            raise InvalidRequest(f"ids must be a mapping from table to ids, not {type(ids)}")

        wanted = {table: ids_of(table, values) for table, values in ids.items()}
        limit_us = self._limit_us(max_staleness_s)

        def attempts() -> list[Attempt[LookupResult]]:
            return [
                partial(self._lookup_in_shares, count, wanted, limit_us)
                for count in self._replicas.cuts()
            ]

        return self._asking.first_answer(attempts)

    def variables(
        self, names: Sequence[str], *, max_staleness_s: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Whole values by name."""
        _check_names(names)
        limit_us = self._limit_us(max_staleness_s)
        request = replica_pb2.ReadVariablesRequest(names=names, max_staleness_us=limit_us)

        def ask(link: ReplicaLink, left_s: float) -> replica_pb2.ReadVariablesResponse:
            asked_s = self._clock()
            reply = link.rows.ReadVariables(request, timeout=left_s)
            self._freshness(reply.freshness, asked_s, limit_us)
            return reply

        reply = self._asking.ask(_NO_BUCKETS, ask)
        values = {}
        for name, value in zip(names, reply.values, strict=True):
            values[name] = codec.array_from_proto(value, f"variable {name}")

        return values

    def features(
        self,
        features: Mapping[str, Values],
        layouts: Sequence[str] = (),
        *,
        max_staleness_s: float | None = None,
    ) -> FeaturesResult:
        """What the model of the job's task sees of these features, in its layouts.

        Values are as in the task's input, one for each example or lists of any length. `layouts`
        names those that are wanted; none = all.
        """
        _check_names(layouts)
        limit_us = self._limit_us(max_staleness_s)
        request = prediction_pb2.FeaturesRequest(
            features=features_to_proto(features), layouts=layouts, max_staleness_us=limit_us
        )

        def ask(link: ReplicaLink, left_s: float) -> FeaturesResult:
            asked_s = self._clock()
            call = FeaturesCall(request)
            layouts, said = link.lookups.ask(call, link.predictions.Features, left_s)
            return FeaturesResult(layouts, self._freshness(said, asked_s, limit_us))

        return self._asking.ask(_ALL_BUCKETS, ask)

    def predict(
        self,
        features: Mapping[str, Values],
        dense: Dense | None = None,
        *,
        max_staleness_s: float | None = None,
    ) -> PredictResult:
        """What the model of the job's task says of each example, from 0 to 1.

        Values are as in the task's input, one for each example or lists of any length. `dense` has
        its numbers by column, or as a matrix [examples, columns].
        """
        limit_us = self._limit_us(max_staleness_s)
        request = prediction_pb2.PredictRequest(
            features=features_to_proto(features), max_staleness_us=limit_us
        )
        set_dense(request, dense)

        def ask(link: ReplicaLink, left_s: float) -> PredictResult:
            asked_s = self._clock()
            call = PredictCall(request)
            predictions, reply = link.lookups.ask(call, link.predictions.Predict, left_s)
            fresh = self._freshness(reply.freshness, asked_s, limit_us)
            return PredictResult(predictions, tuple(reply.missing), fresh)

        return self._asking.ask(_ALL_BUCKETS, ask)

    # --- how calls are made ---

    def _limit_us(self, max_staleness_s: float | None) -> int:
        limit_s = self._max_staleness_s if max_staleness_s is None else max_staleness_s
        if not 0 <= limit_s <= _LONGEST_S:
            raise InvalidRequest(
                f"max_staleness_s={limit_s}: must be 0, for any staleness, to {_LONGEST_S:.0f}"
            )

        return math.ceil(limit_s * 1e6)  # a limit below a microsecond is no 0

    def _freshness(self, said: replica_pb2.Freshness, asked_s: float, limit_us: int) -> Freshness:
        """Of an answer that has come now, and was asked for at `asked_s`.

        The replica spoke for the moment in which it looked, which may have been right after it was
        asked: what was trained since then is not in the answer.
        """
        return self._aged(freshness_from_proto(said), asked_s, limit_us)

    def _aged(self, fresh: Freshness, since_s: float, limit_us: int) -> Freshness:
        """What was so fresh at `since_s`, now; TooStale beyond the limit."""
        staleness_s = fresh.staleness_s + self._clock() - since_s
        if limit_us and staleness_s > limit_us / 1e6:
            raise TooStale(
                f"the answer has what was there {staleness_s:.3f} s ago, the time that it took "
                f"included, and {limit_us / 1e6:.3f} s are allowed"
            )

        return replace(fresh, staleness_s=staleness_s)

    def _lookup_at(
        self,
        buckets: NDArray[np.bool_],
        ids: TableIds,
        limit_us: int,
        deadline: float,
    ) -> LookupResult:
        def ask(link: ReplicaLink, left_s: float) -> LookupResult:
            # Each replica fills rows of its own: a hedged one may answer late
            asked_s = self._clock()
            call = Lookup(ids, limit_us)
            said = link.lookups.ask(call, link.rows.Lookup, left_s)
            return LookupResult(call.rows(), self._freshness(said, asked_s, limit_us))

        return self._asking.ask_once(buckets, ask, deadline)

    def _lookup_in_shares(
        self, count: int, ids: TableIds, limit_us: int, deadline: float
    ) -> LookupResult:
        """Ask a replica of each share for its part of the ids."""
        if count == 1:
            return self._lookup_at(_ALL_BUCKETS, ids, limit_us, deadline)

        share_by_bucket = even_owners(count)
        share_by_id = {}
        for table, values in ids.items():
            share_by_id[table] = share_by_bucket[buckets_of(values)]

        answers = []
        came_s = []
        for share in range(count):
            part = {}
            for table, values in ids.items():
                part[table] = values[share_by_id[table] == share]

            held = share_by_bucket == share
            answers.append(self._lookup_at(held, part, limit_us, deadline))
            came_s.append(self._clock())

        rows = {}
        for table, shares in share_by_id.items():
            rows[table] = _merged(table, [answer.rows[table] for answer in answers], shares)

        ages = []
        for answer, at_s in zip(answers, came_s, strict=True):
            ages.append(self._aged(answer.freshness, at_s, limit_us))

        return LookupResult(rows, _stalest(ages))


def _merged(table: str, parts: Sequence[F32], shares: NDArray[Any]) -> F32:
    """The rows of all shares, in the order of the ids; `shares` has the share of each id."""
    dims = {part.shape[1] for part in parts}
    if len(dims) > 1:
        raise NotReady(
            f"table {table}: rows have {sorted(dims)} numbers at the replicas of its shares, as "
            "not all of them have its new layout yet; ask again in a moment"
        )

    whole = np.empty((shares.size, *dims), np.float32)
    for share, part in enumerate(parts):
        whole[shares == share] = part

    return whole


def _stalest(ages: Sequence[Freshness]) -> Freshness:
    return max(ages, key=lambda freshness: freshness.staleness_s)


def _check_names(names: Sequence[str]) -> None:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list:
        raise InvalidRequest(f"names must be a list of str, not {names!r}")

    for name in names:
        if not isinstance(name, str):
            raise InvalidRequest(f"names must be a list of str, and {name!r} is none")
