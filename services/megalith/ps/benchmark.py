"""How fast this server pushes and pulls: the work of training on a table of its own.

It is measured before the server holds anything.
"""

import threading

import grpc

from megalith.engine.table import checks
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import WrongPlace
from megalith.kernels.dtypes import F32, I64
from megalith.protos import benchmark_pb2, benchmark_pb2_grpc
from megalith.schema import Adagrad, Segment, TableConfig
from megalith.wire import arrays

DIM = 16


class ScratchTable:
    """A table that belongs to no model. `_lock` guards its making and its end, not its rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: EmbeddingTable | None = None
        self._is_dropped = False

    def exchange(self, ids: I64, gradients: F32) -> F32:
        """Apply the gradients and return the rows.

        WrongPlace once the server holds part of the model.
        """
        table = self._made()
        table.apply_gradients(ids, gradients)
        return table.lookup(ids)

    def drop(self) -> None:
        """Give the memory back, for good."""
        with self._lock:
            self._table = None
            self._is_dropped = True

    def _made(self) -> EmbeddingTable:
        with self._lock:
            if self._is_dropped:
                raise WrongPlace("this server is in the map; it is measured only before that")

            if self._table is None:
                self._table = EmbeddingTable(
                    TableConfig("benchmark", (Segment(DIM, optimizer=Adagrad(0.05)),))
                )

            return self._table


class BenchmarkServicer(benchmark_pb2_grpc.BenchmarkServicer):
    def __init__(self, scratch: ScratchTable) -> None:
        self._scratch = scratch

    def Exchange(
        self, request: benchmark_pb2.ExchangeRequest, context: grpc.ServicerContext
    ) -> benchmark_pb2.ExchangeResponse:
        ids = arrays.decode_ids(request.ids, "ids")
        checks.check_distinct(ids, "ids")

        shape = (ids.size, DIM)
        gradients = arrays.decode(request.gradients, arrays.VALUE, shape, "gradients")
        rows = self._scratch.exchange(ids, gradients)

        return benchmark_pb2.ExchangeResponse(rows=arrays.encode(rows))
