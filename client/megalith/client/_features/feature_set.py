"""The features of a model on a cluster: ids of a batch in, arrays out, gradients back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from numpy.typing import NDArray

from megalith.client import _arguments
from megalith.client._features.feature import Feature
from megalith.client._features.feature_layouts import (
    Batch,
    BatchIds,
    FeatureLayouts,
    Gradient,
    Located,
)
from megalith.client._features.layout import Layout
from megalith.client._features.prefetch import ahead
from megalith.client._plans import PushOptions
from megalith.client._transport.pending_call import PendingCall
from megalith.schema import AdmissionConfig

if TYPE_CHECKING:
    from megalith.client._cluster import Cluster, Pulled

T = TypeVar("T")


class FeatureSet(FeatureLayouts):
    """Features, the tables they live in and the layouts in which the model sees them.

    `Cluster.create_features` makes one. Thread-safe: it keeps nothing of a batch. A lookup is one
    pull and an `apply` one push, whatever the number of features: one call to each server.
    """

    def __init__(
        self,
        cluster: "Cluster",
        features: Sequence[Feature],
        layouts: Mapping[str, Layout] | None = None,
        *,
        merge: bool = True,
        admission: AdmissionConfig | None = None,
        memory_budget_bytes: int = 0,
    ) -> None:
        super().__init__(
            features,
            layouts,
            merge=merge,
            admission=admission,
            memory_budget_bytes=memory_budget_bytes,
        )
        self._cluster = cluster
        cluster.create_tables(*self.tables)

    def lookup(self, ids: BatchIds, *, variables: Iterable[str] = ()) -> Batch:
        """Arrays by layout for a batch, and variables by name, with one pull.

        Each feature has its ids as Ragged, or as what `Ragged.of` takes; all of them list the same
        examples. A feature that is left out, like an example without ids, reads zeros; so does an
        id that no push has touched.
        """
        located = self.locate(ids)
        pulled = self._cluster.pull(located.ids, variables)
        return self.assemble(located, pulled.rows, pulled.variables)

    def prefetch(
        self, batches: Iterable[T], ids: Callable[[T], BatchIds], *, depth: int = 1
    ) -> Iterator[tuple[T, Batch]]:
        """Look up the next `depth` batches while the caller works on one.

        Yields (batch, what was looked up for it), in order. A batch that is looked up early misses
        the pushes of up to `depth` batches before it. With a depth of 0 each batch is looked up
        when it is asked for, and misses none.

        `batches` is read, and `ids` called, in the caller's thread. At most `depth` + 1 batches are
        held. The ids of a batch are copied before the next one is read, so `batches` may fill the
        same arrays again and again. If it does, its generator has to copy what else you use of a
        batch, such as labels.
        """
        iterator = _arguments.iterator(batches, "prefetch: batches")
        _arguments.function(ids, "prefetch: ids", "gives the ids of a batch by feature")
        depth = _arguments.integer(depth, "prefetch: depth")

        def begin(batch: T) -> _PendingBatch:
            located = self.locate(ids(batch))
            return _PendingBatch(self, located, self._cluster.begin_pull(located.ids))

        return ahead(iterator, begin, depth)

    def apply(
        self, batch: Batch, gradients: Mapping[str, Gradient], **options: Unpack[PushOptions]
    ) -> dict[str, NDArray[Any]]:
        """Train the rows of a batch with the gradients of its layouts, in one push.

        All is checked before any is sent.

        Parameters
        ----------
        batch
            What `lookup` of this feature set returned.
        gradients
            By layout, shaped like the batch's arrays; a tuple with one for each array of a layout
            with several, or None for one without a gradient. A layout left out has no gradient, and
            ids that get none at all are not pushed.
        options
            The keywords of `Cluster.push`, which also says what is returned.
        """
        return self._cluster.push(self.summed(batch, gradients), **options)

    def begin_apply(
        self, batch: Batch, gradients: Mapping[str, Gradient], **options: Unpack[PushOptions]
    ) -> PendingCall[dict[str, NDArray[Any]]]:
        """`apply` whose push is sent, and whose `result()` waits for it: see `Cluster.begin_push`.

        Wrong gradients are refused here. What fails later is raised by `result()`.
        """
        return self._cluster.begin_push(self.summed(batch, gradients), **options)


class _PendingBatch:
    """A lookup whose pull was sent."""

    def __init__(
        self, features: FeatureLayouts, located: Located, pull: "PendingCall[Pulled]"
    ) -> None:
        self._features = features
        self._located = located
        self._pull = pull

    def result(self) -> Batch:
        pulled = self._pull.result()
        return self._features.assemble(self._located, pulled.rows, pulled.variables)

    def abandon(self, reason: Exception) -> None:
        self._pull.abandon(reason)
