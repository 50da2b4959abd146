"""gRPC face of the benchmark."""

import grpc

from megalith.protos import benchmark_pb2, benchmark_pb2_grpc
from megalith.ps import batch
from megalith.ps.benchmark import DIM, ScratchTable
from megalith.wire import arrays


class BenchmarkServicer(benchmark_pb2_grpc.BenchmarkServicer):
    def __init__(self, scratch: ScratchTable) -> None:
        self._scratch = scratch

    def Exchange(
        self, request: benchmark_pb2.ExchangeRequest, context: grpc.ServicerContext
    ) -> benchmark_pb2.ExchangeResponse:
        keys = arrays.decode_keys(request.keys, "keys")
        batch.check_distinct(keys, "keys")
        gradients = arrays.decode(request.gradients, arrays.VALUE, (keys.size, DIM), "gradients")
        return benchmark_pb2.ExchangeResponse(
            rows=arrays.encode(self._scratch.exchange(keys, gradients))
        )
