"""The features of a model on a cluster: ids of a batch in, arrays for the model out, gradients back."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments, _pooling
from megalith.client._combiners import FirstN
from megalith.client._feature import Feature
from megalith.client._feature_tables import group_by_table, table_config
from megalith.client._ids import Ids
from megalith.client._layout import Layout, Plan, plan
from megalith.client._prefetch import ahead
from megalith.client._ragged import Ragged
from megalith.wire.arrays import as_array
from megalith.wire.errors import (
    DtypeMismatch,
    DuplicateKeys,
    InvalidRequest,
    ShapeMismatch,
    UnknownFeature,
    UnknownLayout,
)
from megalith.wire.schema import AdmissionConfig
from megalith.wire.validation import require

if TYPE_CHECKING:
    from megalith.client._cluster import Cluster

T = TypeVar("T")
F32 = NDArray[np.float32]
BatchIds = Mapping[str, Ragged | ArrayLike]
Gradient = ArrayLike | Sequence[ArrayLike]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch looked up: `batch["layout"]` is what the model sees, `FeatureSet.apply` takes the gradient of it.

    `keys` are the distinct ids by table, `rows` their rows as they were read, `uses` leads from examples to them.
    """

    size: int
    variables: dict[str, NDArray[Any]]
    outputs: dict[str, tuple[F32, ...]]
    keys: dict[str, Ids]
    rows: dict[str, F32]
    uses: dict[str, _pooling.Uses]

    def __getitem__(self, layout: str) -> F32:
        """The array of a layout; one of type none with several parts has `parts` instead."""
        arrays = self.parts(layout)
        if len(arrays) > 1:
            raise InvalidRequest(
                f"layout {layout} has {len(arrays)} arrays: take parts({layout!r})"
            )
        return arrays[0]

    def parts(self, layout: str) -> tuple[F32, ...]:
        """The arrays of a layout: one, or for type none one per part."""
        if layout not in self.outputs:
            raise UnknownLayout(f"no layout {layout!r}; there are {sorted(self.outputs)}")
        return self.outputs[layout]


class FeatureSet:
    """Features, the tables they live in and the layouts in which the model sees them; see `Cluster.features`.

    Thread-safe: it keeps nothing of a batch. A lookup is one pull and an `apply` one push, whatever the number of
    features: one call to each server.
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
        require(bool(features), "features: there are none")
        _arguments.instances(features, Feature, "features")
        for name, layout in _arguments.by_name(layouts, "layouts", "Layout").items():
            require(isinstance(layout, Layout), f"layout {name}: {layout!r} is not a Layout")
        repeated = [
            name
            for name, count in Counter(feature.name for feature in features).items()
            if count > 1
        ]
        if repeated:
            raise DuplicateKeys(f"features {repeated} are given more than once")
        self._cluster = cluster
        self.features = {
            feature.name: feature for feature in sorted(features, key=lambda feature: feature.name)
        }
        self.layouts = (
            {name: Layout.concat(name) for name in self.features}
            if layouts is None
            else dict(layouts)
        )
        self._plans = {
            name: plan(name, self.layouts[name], self.features) for name in sorted(self.layouts)
        }
        unused = set(self.features) - {
            place.feature for plan in self._plans.values() for place in plan.places
        }
        require(
            not unused, f"features {sorted(unused)} are in no layout: the model would not see them"
        )
        groups = group_by_table(list(self.features.values()), merge)
        self.tables = tuple(
            table_config(table, group, admission or AdmissionConfig(), memory_budget_bytes)
            for table, group in groups.items()
        )
        self.table_by_feature = {
            feature.name: table for table, group in groups.items() for feature in group
        }
        cluster.create_tables(*self.tables)

    def lookup(self, ids: BatchIds, *, variables: Iterable[str] = ()) -> Batch:
        """Arrays by layout for a batch, and variables by name, with one pull.

        Each feature has its ids as Ragged, or as what `Ragged.of` takes; all of them list the same examples. A feature
        that is left out, like an example without ids, reads zeros; so does an id that no push has touched.
        """
        return self._looked_up(self._lists(ids), variables)

    def _lists(self, ids: BatchIds) -> dict[str, Ragged]:
        """Checked ids by feature. Row splits are copies: the batch keeps them until its gradients come."""
        by_feature = _arguments.by_name(ids, "ids", "a feature's ids")
        return {name: self._checked(name, given) for name, given in by_feature.items()}

    def _looked_up(self, lists: dict[str, Ragged], variables: Iterable[str]) -> Batch:
        size = _batch_size(lists)
        keys: dict[str, Ids] = {}
        uses: dict[str, _pooling.Uses] = {}
        for config in self.tables:
            present = {
                name: ragged
                for name, ragged in lists.items()
                if self._is_in(config.name, name, ragged)
            }
            if present:
                distinct, places = _pooling.locate(config.name, present)
                keys[config.name] = Ids(
                    distinct, distinct=True
                )  # routed once, for the pull and for the push
                uses |= places
        pulled = self._cluster.pull(keys, variables)
        outputs = {
            name: self._outputs(plan, size, uses, pulled.rows) for name, plan in self._plans.items()
        }
        return Batch(size, pulled.variables, outputs, keys, pulled.rows, uses)

    def apply(
        self,
        batch: Batch,
        gradients: Mapping[str, Gradient],
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> dict[str, NDArray[Any]]:
        """Train the rows of a batch with the gradients of its layouts, in one push; all is checked before any is sent.

        Parameters
        ----------
        batch
            What `lookup` of this feature set returned.
        gradients
            By layout, shaped like the batch's arrays; a tuple with one for each array of a layout with several. A
            layout left out has no gradient, and ids that get none at all are not pushed.
        variables, add, req_time_s, step
            As in `Cluster.push`, which also says what is returned.
        """
        pushed = self._summed(batch, gradients)
        return self._cluster.push(
            pushed, variables=variables, add=add, req_time_s=req_time_s, step=step
        )

    def apply_async(
        self,
        batch: Batch,
        gradients: Mapping[str, Gradient],
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> "Future[dict[str, NDArray[Any]]]":
        """`apply` whose push is sent in the background, in the order of these calls; see `Cluster.push_async`.

        Bad gradients are refused here. What goes wrong later is raised by the future's `result()`.
        """
        pushed = self._summed(batch, gradients)
        return self._cluster.push_async(
            pushed, variables=variables, add=add, req_time_s=req_time_s, step=step
        )

    def prefetch(
        self, batches: Iterable[T], ids: Callable[[T], BatchIds], *, depth: int = 1
    ) -> Iterator[tuple[T, Batch]]:
        """Look up the next `depth` batches while the caller works on one; yields (batch, looked up), in order.

        Rows that were looked up early have not seen the pushes of the up to `depth` batches before theirs: that is
        their staleness, beside what other workers push meanwhile. 0 looks up when asked and is never stale.

        `batches` is read, and `ids` called, in the caller's thread, and at most `depth` + 1 batches are held. The ids
        are copied before the next batch is read: `batches` may fill the same arrays again and again. What else the
        caller takes from a batch, such as labels, is then to be copied by the caller's generator.
        """
        iterator = _arguments.iterator(batches, "prefetch: batches")
        _arguments.function(ids, "prefetch: ids", "gives the ids of a batch by feature")
        depth = _arguments.integer(depth, "prefetch: depth")

        def prepare(batch: T) -> Callable[[], Batch]:
            lists = {name: ragged.copied() for name, ragged in self._lists(ids(batch)).items()}
            return lambda: self._looked_up(lists, ())

        return ahead(iterator, prepare, depth)

    def _summed(
        self, batch: Batch, gradients: Mapping[str, Gradient]
    ) -> dict[str, tuple[ArrayLike | Ids, ArrayLike]]:
        """What a push takes: the gradient of each row by table, for rows that a gradient reaches."""
        if not isinstance(batch, Batch):
            raise InvalidRequest(
                f"apply takes the batch that lookup returned, not {type(batch).__name__}"
            )
        by_layout = _arguments.by_name(gradients, "gradients", "a layout's gradients")
        checked = {
            name: self._checked_gradient(name, batch, gradient)
            for name, gradient in by_layout.items()
        }
        sums = {table: np.zeros_like(rows) for table, rows in batch.rows.items()}
        trained: dict[str, dict[str, _pooling.Uses]] = {table: {} for table in sums}
        for name, arrays in sorted(checked.items()):
            for place in self._plans[name].places:
                uses = batch.uses.get(place.feature)
                if uses is not None:
                    combiner, rows = self.features[place.feature].combiner, batch.rows[uses.table]
                    _pooling.spread(
                        combiner, place, uses, rows, arrays[place.output], sums[uses.table]
                    )
                    trained[uses.table][place.feature] = uses
        pushed: dict[str, tuple[ArrayLike | Ids, ArrayLike]] = {}
        for table, keys in batch.keys.items():
            used = _pooling.rows_used(list(trained[table].values()), len(keys))
            if used.all():
                pushed[table] = keys, sums[table]
            elif used.any():
                pushed[table] = Ids(keys.values[used], distinct=True), sums[table][used]
        return pushed

    def _is_in(self, table: str, name: str, ragged: Ragged) -> bool:
        return self.table_by_feature[name] == table and ragged.values.size > 0

    def _checked(self, name: str, given: Ragged | ArrayLike) -> Ragged:
        if name not in self.features:
            raise UnknownFeature(f"no feature {name!r}; there are {sorted(self.features)}")
        feature = self.features[name]
        try:
            ids = given.copied() if isinstance(given, Ragged) else Ragged.of(given)
        except InvalidRequest as error:
            raise type(error)(f"feature {name}: {error}") from error
        if isinstance(feature.combiner, FirstN):
            ids = ids.first(feature.combiner.n)
        return feature.stored(ids)

    def _outputs(
        self, plan: Plan, size: int, uses: Mapping[str, _pooling.Uses], rows: Mapping[str, F32]
    ) -> tuple[F32, ...]:
        outputs = tuple(np.zeros((size, *shape), np.float32) for shape in plan.shapes)
        for place in plan.places:
            used = uses.get(place.feature)
            if used is not None:
                combiner = self.features[place.feature].combiner
                _pooling.combine(combiner, place, used, rows[used.table], outputs[place.output])
        return outputs

    def _checked_gradient(self, name: str, batch: Batch, gradient: Gradient) -> list[F32]:
        """One float32 array per output of the layout."""
        if name not in self._plans:
            raise UnknownLayout(f"no layout {name!r}; there are {sorted(self._plans)}")
        outputs = batch.parts(name)
        several = isinstance(gradient, tuple) or (isinstance(gradient, list) and len(outputs) > 1)
        given = cast(Any, gradient) if several else [gradient]
        arrays: list[NDArray[Any]] = [
            as_array(array, f"layout {name}: gradients") for array in given
        ]
        expected = [output.shape for output in outputs]
        are_floats = all(array.dtype.kind == "f" for array in arrays)
        if [array.shape for array in arrays] != expected or not are_floats:
            found = [f"{array.dtype} {list(array.shape)}" for array in arrays]
            error = ShapeMismatch if are_floats else DtypeMismatch
            raise error(
                f"layout {name}: gradients are {found}, expected float32 of {list(map(list, expected))}"
            )
        return [np.ascontiguousarray(array, np.float32) for array in arrays]


def _batch_size(lists: Mapping[str, Ragged]) -> int:
    """The number of examples, on which all features agree; 1 if there are shared lists only."""
    if not lists:
        raise InvalidRequest("the batch names no feature, so it has no number of examples")
    sizes = {name: len(ragged) for name, ragged in lists.items() if not ragged.is_shared}
    if len(set(sizes.values())) > 1:
        raise ShapeMismatch(f"the features list different numbers of examples: {sizes}")
    return next(iter(sizes.values()), 1)
