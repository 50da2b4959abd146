"""How fast this server pushes and pulls, before it holds anything: the same work as training, on a table of its own."""

import threading

from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.table import EmbeddingTable
from megalith.wire.errors import WrongPlace
from megalith.wire.schema import Adagrad, Segment, TableConfig

DIM = 16


class ScratchTable:
    """A table that belongs to no model. `_lock` guards its making and its end, not its rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: EmbeddingTable | None = None
        self._is_dropped = False

    def exchange(self, keys: I64, gradients: F32) -> F32:
        """Apply the gradients and return the rows; WrongPlace once the server holds part of the model."""
        table = self._made()
        table.apply_gradients(keys, gradients)
        return table.lookup(keys)

    def drop(self) -> None:
        """Give the memory back, for good."""
        with self._lock:
            self._table, self._is_dropped = None, True

    def _made(self) -> EmbeddingTable:
        with self._lock:
            if self._is_dropped:
                raise WrongPlace(
                    "this server has its place in the map; it is measured only before that"
                )
            if self._table is None:
                self._table = EmbeddingTable(
                    TableConfig("benchmark", (Segment(DIM, optimizer=Adagrad(0.05)),))
                )
            return self._table
