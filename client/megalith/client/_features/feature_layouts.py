"""Features and their layouts without a cluster: which rows a batch needs, and what is made of them.

ids of a batch --locate--> distinct ids by table --(a pull)--> rows --assemble--> arrays by layout
gradients of these arrays --summed--> one gradient for each distinct id --(a push)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._features import pooling
from megalith.client._features.combiners import FirstN
from megalith.client._features.feature import Feature
from megalith.client._features.feature_tables import group_by_table, table_config
from megalith.client._features.layout import Layout, Plan, plan
from megalith.client._features.outputs import array_of, parts_of
from megalith.client._features.ragged import Ragged
from megalith.client._ids import Ids
from megalith.errors import (
    DtypeMismatch,
    DuplicateIds,
    InvalidRequest,
    ShapeMismatch,
    UnknownFeature,
    UnknownLayout,
)
from megalith.schema import AdmissionConfig, TableConfig
from megalith.schema.checks import as_array, require

F32 = NDArray[np.float32]
BatchIds = Mapping[str, Ragged | ArrayLike]
Gradient = ArrayLike | Sequence[ArrayLike | None]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch looked up: `batch["layout"]` is what the model sees.

    `FeatureSet.apply` takes the gradient of it. `ids` are the distinct ids by table, `rows` their
    rows as they were read, `uses` leads from examples to them.
    """

    size: int
    variables: dict[str, NDArray[Any]]
    outputs: dict[str, tuple[F32, ...]]
    ids: dict[str, Ids]
    rows: dict[str, F32]
    uses: dict[str, pooling.Uses]

    def __getitem__(self, layout: str) -> F32:
        """The array of a layout; one of type none with several parts has `parts` instead."""
        return array_of(self.outputs, layout)

    def parts(self, layout: str) -> tuple[F32, ...]:
        """The arrays of a layout: one, or for type none one per part."""
        return parts_of(self.outputs, layout)


@dataclass(frozen=True, slots=True)
class Located:
    """The ids of a batch, before their rows are there.

    A pull of `ids` brings the rows; `uses` leads from examples to them.
    """

    size: int
    ids: dict[str, Ids]  # distinct, by table
    uses: dict[str, pooling.Uses]  # by feature

    def examples(self, start: int, stop: int) -> "Located":
        """A run of the batch's examples, with the ids of the whole batch.

        For example, two threads compute one half each, from the same rows.
        """
        uses = {}
        for name, use in self.uses.items():
            uses[name] = use.examples(start, stop)

        return Located(stop - start, self.ids, uses)


class FeatureLayouts:
    """Features, the tables they live in and the layouts in which the model sees them.

    It knows no cluster and keeps nothing of a batch, so threads may share it. `FeatureSet` is one
    with a cluster; a task of a worker, which is given its rows, uses this class itself.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        layouts: Mapping[str, Layout] | None = None,
        *,
        merge: bool = True,
        admission: AdmissionConfig | None = None,
        memory_budget_bytes: int = 0,
    ) -> None:
        _check_features(features)
        given = _arguments.by_name(layouts, "layouts", "Layout")
        for name, layout in given.items():
            require(isinstance(layout, Layout), f"layout {name}: {layout!r} is not a Layout")

        self.features: dict[str, Feature] = {}
        for feature in sorted(features, key=lambda each: each.name):
            self.features[feature.name] = feature

        self.layouts: dict[str, Layout] = {}
        if layouts is not None:
            self.layouts.update(layouts)
        else:
            for name in self.features:
                self.layouts[name] = Layout.concat(name)

        self._plans: dict[str, Plan] = {}
        for name in sorted(self.layouts):
            layout = self.layouts[name]
            self._plans[name] = plan(name, layout, self.features)

        self._check_all_are_seen()

        groups = group_by_table(list(self.features.values()), merge)
        rule = admission or AdmissionConfig()
        tables: list[TableConfig] = []
        self.table_by_feature: dict[str, str] = {}

        for table, group in groups.items():
            config = table_config(table, group, rule, memory_budget_bytes)
            tables.append(config)

            for feature in group:
                self.table_by_feature[feature.name] = table

        self.tables = tuple(tables)

    def _check_all_are_seen(self) -> None:
        unused = set(self.features)
        for layout in self._plans.values():
            for target in layout.targets:
                unused.discard(target.feature)

        names = sorted(unused)
        require(
            not unused,
            f"features {names} are in no layout: the model would not see them",
        )

    def locate(self, ids: BatchIds) -> Located:
        """Which rows a batch needs.

        Each feature has its ids as Ragged, or as what `Ragged.of` takes; all of them list the same
        examples. Row splits are copied: the batch keeps them until its gradients come.
        """
        by_feature = _arguments.by_name(ids, "ids", "a feature's ids")
        lists: dict[str, Ragged] = {}
        for name, given in by_feature.items():
            lists[name] = self._checked(name, given)

        size = _batch_size(lists)
        distinct: dict[str, Ids] = {}
        uses: dict[str, pooling.Uses] = {}

        for config in self.tables:
            table = config.name
            present: dict[str, Ragged] = {}
            for name, ragged in lists.items():
                if self._is_in(table, name, ragged):
                    present[name] = ragged

            if not present:
                continue

            values, uses_of_table = pooling.locate(table, present)
            # Routed once, for the pull and for the push.
            distinct[table] = Ids(values, distinct=True)
            uses |= uses_of_table

        return Located(size, distinct, uses)

    def assemble(
        self, located: Located, rows: Mapping[str, F32], variables: Mapping[str, NDArray[Any]]
    ) -> Batch:
        """Arrays by layout, from the rows that were pulled for the ids of a batch."""
        outputs: dict[str, tuple[F32, ...]] = {}
        for name, its_plan in self._plans.items():
            outputs[name] = self._outputs(
                its_plan,
                located.size,
                located.uses,
                rows,
            )

        return Batch(
            located.size,
            dict(variables),
            outputs,
            located.ids,
            dict(rows),
            located.uses,
        )

    def row_gradients(self, batch: Batch, gradients: Mapping[str, Gradient]) -> dict[str, F32]:
        """By table, one gradient for each id of the batch; zeros where none reaches.

        A table that no gradient reaches is left out. `summed` leaves out such ids of a table too.
        """
        sums, trained = self._spread(batch, gradients)
        return {table: rows for table, rows in sums.items() if trained[table]}

    def summed(self, batch: Batch, gradients: Mapping[str, Gradient]) -> dict[str, tuple[Ids, F32]]:
        """(ids, gradients) by table, as a push takes them, of the rows that a gradient reaches."""
        sums, trained = self._spread(batch, gradients)
        pushed: dict[str, tuple[Ids, F32]] = {}

        for table, ids in batch.ids.items():
            summed = sums[table]
            uses_of_table = list(trained[table].values())
            num_ids = len(ids)
            used = pooling.rows_used(uses_of_table, num_ids)

            if used.all():
                pushed[table] = ids, summed
            elif used.any():
                reached = Ids(ids.values[used], distinct=True)
                pushed[table] = reached, summed[used]

        return pushed

    def _spread(
        self, batch: Batch, gradients: Mapping[str, Gradient]
    ) -> tuple[dict[str, F32], dict[str, dict[str, pooling.Uses]]]:
        """Gradients of rows by table, and by table and feature the uses that a gradient reaches."""
        if not isinstance(batch, Batch):
            raise InvalidRequest(
                f"apply takes the batch that lookup returned, not {type(batch).__name__}"
            )

        by_layout = _arguments.by_name(gradients, "gradients", "a layout's gradients")
        checked: dict[str, list[F32 | None]] = {}
        for name, gradient in by_layout.items():
            checked[name] = self._checked_gradient(name, batch, gradient)

        sums: dict[str, F32] = {}
        trained: dict[str, dict[str, pooling.Uses]] = {}

        for table, rows in batch.rows.items():
            sums[table] = np.zeros_like(rows)
            trained[table] = {}

        for name, arrays in sorted(checked.items()):
            for target in self._plans[name].targets:
                uses = batch.uses.get(target.feature)
                array = arrays[target.output]
                if uses is None or array is None:
                    continue

                table = uses.table
                combiner = self.features[target.feature].combiner
                rows = batch.rows[table]

                pooling.spread(
                    combiner,
                    target,
                    uses,
                    rows,
                    array,
                    sums[table],
                )
                trained[table][target.feature] = uses

        return sums, trained

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
        self, plan: Plan, size: int, uses: Mapping[str, pooling.Uses], rows: Mapping[str, F32]
    ) -> tuple[F32, ...]:
        outputs: list[F32] = []
        for shape in plan.shapes:
            outputs.append(np.zeros((size, *shape), np.float32))

        for target in plan.targets:
            used = uses.get(target.feature)
            if used is None:
                continue

            combiner = self.features[target.feature].combiner
            rows_of_table = rows[used.table]
            output = outputs[target.output]
            pooling.combine(combiner, target, used, rows_of_table, output)

        return tuple(outputs)

    def _checked_gradient(self, name: str, batch: Batch, gradient: Gradient) -> list[F32 | None]:
        """One float32 array per output of the layout; None for a part without a gradient."""
        if name not in self._plans:
            raise UnknownLayout(f"no layout {name!r}; there are {sorted(self._plans)}")

        outputs = batch.parts(name)
        # Without a tuple, a list may be one array: rows of numbers.
        is_list_of_several = isinstance(gradient, list) and len(outputs) > 1
        are_several = isinstance(gradient, tuple) or is_list_of_several

        given: list[Any] = [gradient]
        if are_several:
            given = list(cast(Any, gradient))

        arrays: list[NDArray[Any] | None] = []
        for each in given:
            is_absent = are_several and each is None
            array = None if is_absent else as_array(each, f"layout {name}: gradients")
            arrays.append(array)

        present = [array for array in arrays if array is not None]
        are_floats = all(array.dtype.kind == "f" for array in present)

        if not are_floats or not _fit(arrays, outputs):
            error = ShapeMismatch if are_floats else DtypeMismatch
            found = [_in_words(array) for array in arrays]
            expected = [list(output.shape) for output in outputs]
            raise error(f"layout {name}: gradients are {found}, expected float32 of {expected}")

        return [_as_float32(array) for array in arrays]


def _fit(arrays: Sequence[NDArray[Any] | None], outputs: Sequence[F32]) -> bool:
    """Whether there is an array of its shape for each output, or None."""
    if len(arrays) != len(outputs):
        return False

    pairs = zip(arrays, outputs, strict=True)
    return all(array is None or array.shape == output.shape for array, output in pairs)


def _in_words(array: NDArray[Any] | None) -> str:
    return "None" if array is None else f"{array.dtype} {list(array.shape)}"


def _as_float32(array: NDArray[Any] | None) -> F32 | None:
    return None if array is None else np.ascontiguousarray(array, np.float32)


def _check_features(features: Sequence[Feature]) -> None:
    require(bool(features), "features: there are none")
    _arguments.instances(features, Feature, "features")

    names = [feature.name for feature in features]
    counts = Counter(names)
    repeated = [name for name in counts if counts[name] > 1]

    if repeated:
        raise DuplicateIds(f"features {repeated} are given more than once")


def _batch_size(lists: Mapping[str, Ragged]) -> int:
    """The number of examples, on which all features agree; 1 if there are shared lists only."""
    if not lists:
        raise InvalidRequest("the batch names no feature, so it has no number of examples")

    sizes = {name: len(ragged) for name, ragged in lists.items() if not ragged.is_shared}
    if len(set(sizes.values())) > 1:
        raise ShapeMismatch(f"the features list different numbers of examples: {sizes}")

    return next(iter(sizes.values()), 1)
