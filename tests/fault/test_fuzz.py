"""Malformed messages to a live ps, on gRPC and on the bulk lane: it neither dies, nor grows, nor
changes.

Every message is wrong in several independent ways, so that no random change of some bytes can make
it right. MEGALITH_TEST_FUZZ_MESSAGES sets how many there are.
"""

import os
import random
import re
import socket
import struct
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from megalith.client import Adagrad, Segment, TableConfig, VariableConfig, connect
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import arrays, codec
from megalith.wire.channel import open_channel
from megalith.wire.status import CODE_KEY
from support.processes import Processes

MESSAGES = int(os.environ.get("MEGALITH_TEST_FUZZ_MESSAGES", "20000"))
WARM_UP = 2_000
IN_FLIGHT = 64
IDS = np.arange(500)
GROWTH_BYTES = 24 << 20  # 1.2 kB a message; grpc itself kept 10 kB of each while it parsed them
SERVICE = "/megalith.v1.ParameterServer/"


def wrong_requests(routing):
    """(method, request) pairs, none of which may change anything."""
    for method, request in _wrong_requests(routing.epoch):
        request.run_id = routing.run_id
        yield method, request


def _wrong_requests(epoch):
    nan = np.full((3, 2), np.nan, np.float32)
    twice = np.array([5, 5, 5])
    gradients = pb.TableGradients(
        table="nobody", ids=arrays.encode(twice), gradients=arrays.encode(nan)
    )
    known = pb.TableGradients(
        table="rows", ids=arrays.encode(twice)[:-1], gradients=arrays.encode(nan)[:-2]
    )
    updates = [
        pb.VariableUpdate(name="nobody", kind=9, value=codec.array_to_proto(nan)),
        pb.VariableUpdate(name="w", kind=1, value=pb.VariableUpdate().value),
    ]
    for sequence in (-1, 0):
        yield (
            "Push",
            pb.PushRequest(
                epoch=epoch, sequence=sequence, tables=[gradients, known], variables=updates
            ),
        )
    yield (
        "Push",
        pb.PushRequest(epoch=epoch, client_id="fuzz", sequence=1, tables=[known, known, gradients]),
    )
    yield (
        "Push",
        pb.PushRequest(
            epoch=epoch + 9, client_id="fuzz", sequence=1, variables=updates, req_time_s=-5, step=-1
        ),
    )
    yield (
        "Pull",
        pb.PullRequest(
            epoch=epoch,
            tables=[pb.TableIds(table="nobody", ids=b"1234567")],
            variables=["nobody"],
        ),
    )
    yield (
        "Pull",
        pb.PullRequest(
            epoch=epoch, tables=[pb.TableIds(table="rows", ids=b"1")] * 2, variables=["w@7/9"]
        ),
    )
    part = pb.VariablePart(index=-3, count=1, rows=-1)
    variable = pb.VariableConfig(name="w@0/2", initial=codec.array_to_proto(nan), part=part)
    yield "CreateVariables", pb.CreateVariablesRequest(epoch=epoch, variables=[variable, variable])
    table = codec.table_to_proto(TableConfig("new", (Segment(2),)))
    table.segments[0].dim, table.max_expire_share, table.name = -7, float("nan"), ""
    yield "CreateTables", pb.CreateTablesRequest(epoch=epoch, tables=[table, table])
    values = pb.TableValues(table="nobody", ids=arrays.encode(twice), values=arrays.encode(nan))
    known_values = pb.TableValues(
        table="rows", ids=arrays.encode(twice)[:-1], values=arrays.encode(nan)[:-2]
    )
    yield (
        "AssignRows",
        pb.AssignRowsRequest(
            epoch=epoch, sequence=-1, tables=[values, known_values], req_time_s=-5
        ),
    )
    yield (
        "AssignRows",
        pb.AssignRowsRequest(
            epoch=epoch, client_id="fuzz", sequence=1, tables=[known_values] * 2, is_added=True
        ),
    )
    yield (
        "ReinitializeRows",
        pb.ReinitializeRowsRequest(epoch=epoch, sequence=-1, table="rows", ids=b"1234567"),
    )
    yield (
        "DescribeVariables",
        pb.DescribeVariablesRequest(epoch=epoch, names=["nobody", "w@0/2", "\0"]),
    )
    # At another epoch: a name that is cut short may be a right one
    yield "PutBlob", pb.PutBlobRequest(epoch=epoch + 9, name="x" * 300, data=b"1")
    yield "PutBlob", pb.PutBlobRequest(epoch=epoch + 9, name="", data=b"1")
    yield "GetBlob", pb.GetBlobRequest(epoch=epoch, name="nobody")
    yield "DropBlob", pb.DropBlobRequest(epoch=epoch + 9, name="\0")
    yield "ListBlobs", pb.ListBlobsRequest(epoch=-epoch)


def spoiled(rng, message):
    """The message with a few bytes changed, lost, added or repeated; one in four as it is."""
    data = bytearray(message)
    for _ in range(rng.choice([0, 1, 1, 3])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 60)]
    return bytes(data)


class Unary:
    """Malformed messages as unary calls, several at once."""

    def __init__(self, channel, routing, rng):
        self._rng, self._requests = (
            rng,
            [(name, request.SerializeToString()) for name, request in wrong_requests(routing)],
        )
        names = {name for name, _ in self._requests}
        self._calls = {name: channel.unary_unary(SERVICE + name) for name in names}
        self.answers = {}

    def send(self, count):
        waiting = deque()
        for _ in range(count):
            if len(waiting) == IN_FLIGHT:
                self._note(waiting.popleft())
            name, message = self._rng.choice(self._requests)
            waiting.append(self._calls[name].future(spoiled(self._rng, message), timeout=60))
        for call in waiting:
            self._note(call)

    def _note(self, call):
        codes = dict(call.trailing_metadata() or ())
        answer = codes.get(CODE_KEY) or f"{call.code().name} {call.details()}"
        self.answers[answer] = self.answers.get(answer, 0) + 1


class Lane:
    """Malformed frames on the bulk lane; a connection that the server ends is replaced."""

    def __init__(self, port, token, routing, rng):
        self._port, self._rng = port, rng
        self._hello = pb.LaneHello(token=token).SerializeToString()
        self._heads = []
        for name, request in wrong_requests(routing):
            if name in ("Pull", "Push"):
                call = {name.lower(): request}
                self._heads.append(
                    pb.LaneRequest(**call, array_bytes=[24, -1, 2**62]).SerializeToString()
                )
                self._heads.append(pb.LaneRequest(**call, array_bytes=[24] * 4).SerializeToString())
        self._sock, self.answered, self.ended = None, 0, 0

    def send(self, count):
        for _ in range(count):
            head, body = spoiled(self._rng, self._rng.choice(self._heads)), b"\xff" * 96
            sizes = self._rng.choice(
                [(len(head), 96)] * 6 + [(2**32 - 1, 0), (len(head), 2**63), (0, 0)]
            )
            magic = self._rng.choice([b"MGL1"] * 9 + [b"HTTP"])
            frame = struct.pack("<4sIQ", magic, *sizes) + (
                head + body if sizes[0] == len(head) else b""
            )
            self._exchange(frame)
            if magic != b"MGL1" or sizes != (len(head), 96):
                self.close()  # what follows would be taken for the rest of it

    def _exchange(self, frame):
        try:
            if self._sock is None:
                self._sock = socket.create_connection(("127.0.0.1", self._port), 30)
                hello = (
                    self._hello
                    if self._rng.random() < 0.9
                    else spoiled(self._rng, self._hello[:-1])
                )
                self._sock.sendall(struct.pack("<4sIQ", b"MGL1", len(hello), 0) + hello)
                self._answer()
            self._sock.sendall(frame)
            self._answer()
        except ConnectionError:
            self.close()

    def _answer(self):
        _, head, body = struct.unpack("<4sIQ", self._received(16))
        reply = pb.LaneReply.FromString(self._received(head))
        assert body == 0
        assert reply.WhichOneof("result") in ("error", None)
        assert reply.error.code != "internal", reply.error.message
        self.answered += 1

    def _received(self, count):
        data = b""
        while len(data) < count:  # a socket with a time-out does not wait for all of it
            part = self._sock.recv(count - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    def close(self):
        if self._sock is not None:
            self._sock.close()
            self._sock, self.ended = None, self.ended + 1


def resident_bytes(pid):
    return (
        int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()).group(1))
        * 1024
    )


def content(cluster):
    pulled = cluster.pull({"rows": IDS}, ["w"])
    return pulled.rows["rows"].tobytes(), pulled.variables["w"].tobytes()


@pytest.mark.timeout(600)
def test_malformed_messages_neither_kill_nor_grow_nor_change_a_server(tmp_path):
    with Processes(tmp_path) as processes, ExitStack() as stack:
        processes.start_controller(num_ps=1, num_workers=0)
        ps = processes.start_member("ps", 0)
        cluster = stack.enter_context(connect(model_dir=str(processes.model_dir), timeout_s=60))
        rng = np.random.default_rng(0)
        cluster.create_tables(TableConfig("rows", (Segment(2, optimizer=Adagrad(0.1)),)))
        cluster.create_variables(VariableConfig("w", np.ones(3, np.float32), Adagrad(0.1)))
        gradients = rng.standard_normal((IDS.size, 2)).astype(np.float32)
        cluster.push({"rows": (IDS, gradients)}, variable_gradients={"w": gradients[:3, 0]})
        before = content(cluster)
        routing = cluster.controller.routing()
        with open_channel(routing.addresses[0]) as channel:
            stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
            terms = stub.Negotiate(pb.NegotiateRequest(run_id=routing.run_id), timeout=30)
            status = stub.GetPsStatus(pb.GetPsStatusRequest(), timeout=30)
            unary = Unary(channel, routing, random.Random(1))
            lane = Lane(terms.lane_port, terms.lane_token, routing, random.Random(2))
            stack.callback(lane.close)
            for each in (unary, lane):
                each.send(WARM_UP // 2)
            settled = resident_bytes(ps.pid)
            for each in (unary, lane):
                each.send(MESSAGES // 2)
            grown = resident_bytes(ps.pid) - settled
            assert ps.poll() is None
            after = stub.GetPsStatus(pb.GetPsStatusRequest(), timeout=30)
        assert grown < GROWTH_BYTES
        assert content(cluster) == before
        assert [(table.config, table.rows) for table in after.tables] == [
            (table.config, table.rows) for table in status.tables
        ]
        assert after.variables == status.variables
        assert not [
            answer for answer in unary.answers if answer.startswith(("OK", "INTERNAL", "internal"))
        ]
        assert "Traceback" not in ps.output()
        assert lane.answered > 0
        cluster.push({"rows": (IDS, gradients)})
        print(
            f"grown={grown} unary={unary.answers} lane answered={lane.answered} ended={lane.ended}"
        )
