"""What a replica asks a task, and the examples of a request.

A task that has these methods can be served; `FeatureTask` and the task `ctr` have them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from megalith.client import Ids, Ragged, hash_ids
from megalith.errors import DtypeMismatch
from megalith.kernels.dtypes import F32, I64
from megalith.schema import TableConfig, VariableConfig

# Reads the rows of these ids, by table, and the variables of these names.
ReadModel = Callable[
    [Mapping[str, I64 | Ids], Sequence[str]], tuple[dict[str, F32], dict[str, NDArray[Any]]]
]
LayoutArrays = Mapping[str, tuple[F32, ...]]


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """Values of one feature: integers, or text as UTF-8.

    Without `row_splits` there is one for each example. `is_shared`: all of them are of every
    example.
    """

    values: I64 | list[bytes]
    row_splits: I64 | None = None
    is_shared: bool = False

    def as_ids(self, feature: str) -> Ragged:
        """The values are ids themselves."""
        if isinstance(self.values, list):
            raise DtypeMismatch(
                f"feature {feature}: the task takes ids, which are integers, and not text"
            )

        return self._ragged(self.values)

    def hashed(self) -> Ragged:
        """The ids that `hash_ids` makes of the values."""
        return self._ragged(hash_ids(self.values))

    def _ragged(self, ids: I64) -> Ragged:
        if self.is_shared:
            return Ragged.shared(ids)
        if self.row_splits is None:
            return Ragged.of(ids)

        return Ragged(ids, self.row_splits)


@dataclass(frozen=True, slots=True)
class ServedExamples:
    """Examples of a request.

    Dense numbers are a matrix in the order of the task's columns, or columns by name. None is
    infinite, and in a matrix none is NaN; in a column by name NaN is a number that is missing.
    """

    features: Mapping[str, FeatureValues]
    dense: F32 | None
    dense_columns: Mapping[str, F32]


@runtime_checkable
class ServedTask(Protocol):
    """A task that answers for single examples. One call at a time."""

    @property
    def tables(self) -> tuple[TableConfig, ...]: ...

    @property
    def variables(self) -> tuple[VariableConfig, ...]: ...

    @property
    def served_features(self) -> Sequence[str]:
        """Names of its features."""

    @property
    def served_dense(self) -> Sequence[str]:
        """Names of its dense columns; empty if they have none."""

    def served_layouts(
        self, features: Mapping[str, FeatureValues], read: ReadModel
    ) -> LayoutArrays:
        """The arrays that its model sees, by layout: one, or one for each part."""

    def served_logits(self, examples: ServedExamples, read: ReadModel) -> F32:
        """One logit for each example."""
