"""The steps of W2 over other transports than the bulk lane; table, client kernels and messages are
the same for each.

transports.py [lane] [unary] [aio] [asyncio] [flight]     all of them by default, in turns

lane     what Megalith uses: a framed TCP connection, a thread for each
unary    Python gRPC with a pool of threads: the portable calls
aio      the same calls served by grpc.aio, the call made on the event loop itself
asyncio  the lane's frames served by an asyncio protocol
flight   Arrow Flight DoExchange on a stream that is held open, arrays as binary columns

Two servers in processes of their own and one client: pull, then push, of about 39,000 distinct ids.
"""

import asyncio
import multiprocessing
import struct
import sys
import threading
import time
from concurrent import futures
from functools import partial

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight
import w2

from megalith.client._ids import RecentIds
from megalith.client._plans import PullPlan, PushPlan
from megalith.client._transport.requests import DataCall
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.ps.data_plane import DataPlane
from megalith.ps.lane_calls import PsLaneCalls
from megalith.ps.servicer import ParameterServicer
from megalith.ps.store.store import Store
from megalith.ps.warm_up import warm_up
from megalith.runtime.lane.calls import LaneCalls
from megalith.runtime.lane.server import LaneServer
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.monitoring.metrics import Metrics
from megalith.schema import Adagrad, Segment, TableConfig
from megalith.wire import arrays, channel, routing
from megalith.wire.budget import ByteBudget
from megalith.wire.lane import Lane

TABLE = TableConfig(
    "rows", (Segment(w2.DIM, optimizer=Adagrad(w2.RATE, initial_accumulator_value=w2.ACCUMULATOR)),)
)
ROUTING = routing.Routing(1, ("127.0.0.1:0", "127.0.0.1:1"), routing.even_owners(2))
LIMIT, TOKEN = 256 << 20, b"token"
ROUNDS = 3


# --- servers: each prints nothing, sends its port, and serves until it is killed ---


def filled_store(index, rows):
    store = Store(index)
    store.route(ROUTING, True)
    store.create_tables(1, [TABLE])
    (table,) = store.tables()
    for begin in range(0, rows, 1 << 18):
        keys = w2.keys_of(np.arange(begin, min(begin + (1 << 18), rows)))
        keys = keys[ROUTING.owner_of(keys) == index]
        table.apply_gradients(keys, np.zeros((keys.size, w2.DIM), np.float32))
    return store


def serve(kind, index, rows, connection):
    warm_up()
    data = DataPlane(filled_store(index, rows))
    SERVERS[kind](data, connection.send)
    threading.Event().wait()


def serve_lane(data, ready):
    server = LaneServer(
        "127.0.0.1",
        0,
        LaneCalls(PsLaneCalls(data).call, Metrics(), TOKEN, LIMIT),
        LIMIT,
        ByteBudget(1 << 30),
        ByteBudget(1 << 30),
        LaneSettings(),
    )
    server.start()
    ready(server.port)


def serve_unary(data, ready):
    server = grpc.server(futures.ThreadPoolExecutor(16), options=channel.options(LIMIT))
    servicer = ParameterServicer(
        0, Store(0), data, ByteBudget(1 << 30), ByteBudget(1 << 30), LaneSettings()
    )
    parameter_server_pb2_grpc.add_ParameterServerServicer_to_server(servicer, server)
    ready(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    threading.Event().wait()


def serve_aio(data, ready):
    servicer = ParameterServicer(
        0, Store(0), data, ByteBudget(1 << 30), ByteBudget(1 << 30), LaneSettings()
    )

    class Servicer(parameter_server_pb2_grpc.ParameterServerServicer):
        async def Pull(self, request, context):
            return servicer.Pull(request, context)

        async def Push(self, request, context):
            return servicer.Push(request, context)

    async def run():
        server = grpc.aio.server(options=channel.options(LIMIT))
        parameter_server_pb2_grpc.add_ParameterServerServicer_to_server(Servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready(port)
        await server.wait_for_termination()

    asyncio.run(run())


def serve_asyncio(data, ready):
    calls, start = (
        LaneCalls(PsLaneCalls(data).call, Metrics(), TOKEN, LIMIT),
        struct.Struct("<4sIQ"),
    )

    def framed(head, body=()):
        return [start.pack(b"MGL1", len(head), sum(part.nbytes for part in body)) + head, *body]

    async def talk(reader, writer):
        _, head, _ = start.unpack(await reader.readexactly(start.size))
        calls.check_hello(memoryview(await reader.readexactly(head)))
        writer.writelines(framed(b""))
        while True:
            _, head, body = start.unpack(await reader.readexactly(start.size))
            request = memoryview(await reader.readexactly(head))
            reply, sent = calls.answer(request, memoryview(await reader.readexactly(body)), 0.0)
            writer.writelines(framed(reply.SerializeToString(), sent))
            await writer.drain()

    async def run():
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=16 << 20)
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


REQUEST = pa.schema([("keys", pa.large_binary()), ("values", pa.large_binary())])
REPLY = pa.schema([("rows", pa.large_binary())])


def row_of(schema, *parts):
    """One row of binary columns over the arrays' own memory."""
    columns = [
        pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            1,
            [None, pa.py_buffer(np.array([0, part.nbytes], np.int64)), pa.py_buffer(part)],
        )
        for part in parts
    ]
    return pa.record_batch(columns, schema=schema)


def binary(batch, column):
    begin, end = np.frombuffer(batch.column(column).buffers()[1], np.int64)[:2].tolist()
    return (
        memoryview(batch.column(column).buffers()[2]).cast("B")[begin:end]
        if end
        else memoryview(b"")
    )


def serve_flight(data, ready):
    class Server(pa.flight.FlightServerBase):
        def do_exchange(self, context, descriptor, reader, writer):
            writer.begin(REPLY)
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                request = pb.LaneRequest.FromString(chunk.app_metadata.to_pybytes())
                keys, values = (binary(chunk.data, column) for column in (0, 1))
                if request.WhichOneof("call") == "pull":
                    reply, rows = data.pull(request.pull, [keys])
                    writer.write_with_metadata(
                        row_of(REPLY, rows[0]), pb.LaneReply(pull=reply).SerializeToString()
                    )
                else:
                    reply = data.push(request.push, [keys], [values])
                    head = pb.LaneReply(push=reply).SerializeToString()
                    writer.write_with_metadata(row_of(REPLY, np.empty(0, np.uint8)), head)

    server = Server("grpc://127.0.0.1:0")
    ready(server.port)
    server.serve()


# --- clients: start a DataCall at one server; finish it ---


class OverLane:
    def __init__(self, port):
        terms = pb.NegotiateResponse(lane_port=port, lane_token=TOKEN, max_message_bytes=LIMIT)
        self._lane = Lane("127.0.0.1:0", terms)

    def start(self, call):
        return self._lane.start(call, time.monotonic() + 30).finish


class OverUnary:
    def __init__(self, port):
        self._stub = parameter_server_pb2_grpc.ParameterServerStub(
            channel.open_channel(f"127.0.0.1:{port}", LIMIT)
        )

    def start(self, call):
        message = call.whole_message()
        method = self._stub.Pull if isinstance(message, pb.PullRequest) else self._stub.Push
        future = method.future(message, timeout=30)
        return lambda: call.take(future.result())


class OverFlight:
    def __init__(self, port):
        client = pa.flight.connect(f"grpc://127.0.0.1:{port}")
        self._writer, self._reader = client.do_exchange(pa.flight.FlightDescriptor.for_command(b""))
        self._writer.begin(REQUEST)

    def start(self, call: DataCall):
        is_pull = isinstance(call.message, pb.PullRequest)
        head = pb.LaneRequest(pull=call.message) if is_pull else pb.LaneRequest(push=call.message)
        values = np.empty(0, np.uint8) if is_pull else call.arrays[1]
        self._writer.write_with_metadata(
            row_of(REQUEST, call.arrays[0], values), head.SerializeToString()
        )
        return partial(self._finish, call, is_pull)

    def _finish(self, call, is_pull):
        chunk = self._reader.read_chunk()
        if is_pull:
            rows = binary(chunk.data, 0)
            call.sink(0, len(rows))[:] = rows


SERVERS = {
    "lane": serve_lane,
    "unary": serve_unary,
    "aio": serve_aio,
    "asyncio": serve_asyncio,
    "flight": serve_flight,
}
CLIENTS = {
    "lane": OverLane,
    "unary": OverUnary,
    "aio": OverUnary,
    "asyncio": OverLane,
    "flight": OverFlight,
}


class Stepper:
    """Pulls and pushes of one client over one transport, as `Cluster` makes them."""

    def __init__(self, kind, rows):
        context = multiprocessing.get_context("spawn")
        self._processes, self._peers, self._sequence, self._recent = [], [], 0, RecentIds()
        pipes = []
        for index in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(kind, index, rows, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            pipes.append(ours)
        self._peers = [CLIENTS[kind](pipe.recv()) for pipe in pipes]

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()

    def _exchange(self, calls):
        for call in calls.values():
            call.epoch = 1
        finishes = [self._peers[index].start(call) for index, call in calls.items()]
        for finish in finishes:
            finish()

    def pull(self, ids):
        plan = PullPlan(ROUTING, {"rows": ids}, (), self._recent)
        self._exchange(plan.calls)
        return plan.rows(lambda table: TABLE)["rows"]

    def push(self, ids, gradients):
        plan = PushPlan(ROUTING, lambda table: TABLE, self._recent, arrays.VALUE)
        plan.add_gradients("rows", ids, gradients, ())
        self._sequence += 1
        for message in plan.messages().values():
            message.client_id, message.sequence = "bench", self._sequence
        self._exchange(plan.calls())


def main(kinds):
    batches = w2.distinct_batches()
    gradients = np.full((max(ids.size for ids in batches), w2.DIM), 0.01, np.float32)
    for kind in kinds:
        stepper = Stepper(kind, w2.ROWS)
        try:
            before = stepper.pull(batches[0][:100])
            stepper.push(batches[0][:100], gradients[:100])
            step = w2.RATE * 0.01 / (np.sqrt(w2.ACCUMULATOR + 1e-4) + w2.EPSILON)
            np.testing.assert_allclose(stepper.pull(batches[0][:100]), before - step, atol=1e-6)
            rates = []
            for _ in range(ROUNDS + 1):
                began = time.perf_counter()
                for ids in batches:
                    stepper.pull(ids)
                    stepper.push(ids, gradients[: ids.size])
                rates.append(len(batches) / (time.perf_counter() - began))
            w2.report_best(
                f"transport_{kind}", "steps/s", rates[1:], ps=2, clients=1, rows=w2.ROWS, dim=w2.DIM
            )
        finally:
            stepper.close()


if __name__ == "__main__":
    main(sys.argv[1:] or SERVERS)
