"""Who holds what a checkpoint saves and restores."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from megalith.checkpoint.files.applied import AppliedWrites
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.kernels.dtypes import Bools


class ShardHolder(Protocol):
    """Who holds tables, variables and blobs: a ps, or whoever else saves and restores them."""

    def tables(self) -> list[EmbeddingTable]: ...

    def variables(self) -> list[Variable]: ...

    def blobs(self) -> dict[str, bytes]:
        """What programs have stored beside the rows, by name."""
        ...

    def adopt_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Take restored blobs, all of them."""
        ...

    def buckets(self) -> Bools:
        """Which buckets its rows are of."""
        ...

    def cut(self) -> AbstractContextManager[None]:
        """Inside, nobody writes."""
        ...

    def applied_writes(self) -> AppliedWrites:
        """The writes that it remembers to have applied."""
        ...

    def adopt_writes(self, applied: AppliedWrites) -> None:
        """Remember writes that are in what was restored."""
        ...

    def adopt(self, table: EmbeddingTable | None = None, variable: Variable | None = None) -> None:
        """Take a restored table or variable."""
        ...
