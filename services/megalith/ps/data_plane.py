"""Pull, push and row writes as the store takes them: decode, one call, encode.

Pull and push come by both lanes: the message without its arrays, and the arrays beside it.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.engine.variable.variable import UpdateKind
from megalith.errors import InvalidRequest, MalformedArray, MessageTooLarge
from megalith.protos import parameter_server_pb2 as pb
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients, TableValues, VariableUpdate
from megalith.wire import arrays, codec
from megalith.wire.channel import DEFAULT_MAX_MESSAGE_BYTES

Buffer = bytes | memoryview

_BLOB_HEAD = 16  # bytes of a reply beside the blob that it has, at most

_KINDS = {
    pb.VariableUpdate.KIND_GRADIENT: UpdateKind.GRADIENT,
    pb.VariableUpdate.KIND_ADD: UpdateKind.ADD,
    pb.VariableUpdate.KIND_ASSIGN: UpdateKind.ASSIGN,
    pb.VariableUpdate.KIND_RAISE: UpdateKind.RAISE,
}


class DataPlane:
    """What a ps does with a pull or a push, however it came.

    `looked_up` is told what each lookup of rows took.
    """

    def __init__(
        self,
        store: Store,
        looked_up: Callable[[float], None] = lambda microseconds: None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._store = store
        self._looked_up = looked_up
        self._max_message_bytes = max_message_bytes

    def pull(
        self, request: pb.PullRequest, id_data: Sequence[Buffer], reserve: Callable[[int], None]
    ) -> tuple[pb.PullResponse, list[NDArray[Any]]]:
        """The reply without its rows, and the rows by table.

        A few bytes of ids can ask for gigabytes of rows. So a reply that no message holds is
        refused, and `reserve` is told how much memory the others need, before anything is looked
        up.
        """
        with self._store.serving(request.run_id, request.is_controller_away):
            dtype = codec.row_dtype(request.row_dtype, "pulled rows")
            names = request.variables
            tables = []

            for part, data in zip(request.tables, id_data, strict=True):
                ids = arrays.decode_ids(data, f"ids of table {part.table}")
                tables.append((part.table, ids))

            num_floats, variable_bytes = self._store.pulled_size(tables, names)
            row_bytes_sent = num_floats * dtype.itemsize
            row_bytes_held = num_floats * arrays.VALUE.itemsize
            self._check_reply(row_bytes_sent + variable_bytes)
            reserve(row_bytes_held + variable_bytes)

            start = time.perf_counter()
            rows, variables = self._store.pull(request.epoch, tables, names)
            seconds = time.perf_counter() - start
            if tables:
                self._looked_up(seconds * 1e6)

            sent: list[NDArray[Any]] = [*rows]
            if dtype == arrays.HALF:
                sent = [arrays.to_half(matrix) for matrix in rows]

            values = [codec.array_to_proto(value) for value in variables]
            return pb.PullResponse(variables=values), sent

    def put_blob(self, request: pb.PutBlobRequest) -> None:
        with self._store.serving(request.run_id, request.is_controller_away):
            self._store.put_blob(request.epoch, request.name, request.data)

    def get_blob(self, request: pb.GetBlobRequest) -> bytes:
        """A blob that no message holds is refused; it may come from a server with another limit."""
        with self._store.serving(request.run_id, request.is_controller_away):
            data = self._store.get_blob(request.epoch, request.name)

        if len(data) + _BLOB_HEAD > self._max_message_bytes:
            raise MessageTooLarge(
                f"blob {request.name!r} has {len(data)} bytes, above the limit of "
                f"{self._max_message_bytes} for one message; raise --max-message-bytes of the "
                "servers, and max_message_bytes of the program"
            )

        return data

    def _check_reply(self, nbytes: int) -> None:
        if nbytes > self._max_message_bytes:
            raise MessageTooLarge(
                f"a reply of {nbytes} bytes is above the limit of {self._max_message_bytes}; "
                "ask for fewer ids per call, or raise --max-message-bytes"
            )

    def push(
        self, request: pb.PushRequest, id_data: Sequence[Buffer], gradients: Sequence[Buffer]
    ) -> pb.PushResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            parts: list[TableGradients] = []
            for message, ids, values in zip(request.tables, id_data, gradients, strict=True):
                parts.append(_decode_gradients(message, ids, values))

            updates = [_decode_update(update) for update in request.variables]
            added = self._store.push(
                request.epoch,
                _sender(request),
                parts,
                updates,
                request.req_time_s,
                request.step,
            )

            new_values = [codec.array_to_proto(value) for value in added]
            return pb.PushResponse(added=new_values)

    def assign(self, request: pb.AssignRowsRequest) -> None:
        with self._store.serving(request.run_id, request.is_controller_away):
            values = [_decode_values(part) for part in request.tables]
            self._store.assign(
                request.epoch,
                _sender(request),
                values,
                is_added=request.is_added,
                req_time_s=request.req_time_s,
            )

    def reinitialize(self, request: pb.ReinitializeRowsRequest) -> NDArray[np.int8]:
        """The status of each id."""
        with self._store.serving(request.run_id, request.is_controller_away):
            table = request.table
            ids = arrays.decode_ids(request.ids, f"ids of table {table}")
            sender = _sender(request)

            return self._store.reinitialize(request.epoch, sender, table, ids)


def _sender(
    request: pb.PushRequest | pb.AssignRowsRequest | pb.ReinitializeRowsRequest,
) -> Sender:
    first_try_s_ago = math.inf
    if request.first_try_ms_ago > 0:
        first_try_s_ago = request.first_try_ms_ago / 1000

    return Sender(
        request.client_id,
        request.sequence,
        request.incarnation,
        request.is_repeated,
        first_try_s_ago,
        request.reached_predecessor,
    )


def _decode_gradients(message: pb.TableGradients, id_data: Buffer, data: Buffer) -> TableGradients:
    table = message.table
    dtype = codec.row_dtype(message.dtype, f"gradients of table {table}")
    ids, gradients = _decode_rows(table, id_data, data, dtype, "gradients")

    if dtype == arrays.HALF:
        gradients = gradients.astype(np.float32)
        gradients.flags.writeable = False  # as it comes from bytes: kernels are compiled for that

    learning_rates = tuple(message.learning_rates)
    return TableGradients(table, ids, gradients, learning_rates)


def _decode_values(message: pb.TableValues) -> TableValues:
    table = message.table
    ids, values = _decode_rows(table, message.ids, message.values, arrays.VALUE, "values")
    return TableValues(table, ids, values)


def _decode_rows(
    table: str, id_data: Buffer, data: Buffer, dtype: np.dtype[Any], what: str
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Ids and a matrix with a row for each; how wide it must be is the table's to say."""
    ids = arrays.decode_ids(id_data, f"ids of table {table}")
    nbytes = len(data)
    column_bytes = ids.size * dtype.itemsize

    if ids.size == 0 or nbytes % column_bytes:
        raise MalformedArray(
            f"table {table}: {nbytes} bytes of {what} for {ids.size} ids; "
            f"expected {dtype.name} [ids, dim] with at least one id"
        )

    width = nbytes // column_bytes
    matrix = arrays.decode(data, dtype, (ids.size, width), what)
    return ids, matrix


def _decode_update(message: pb.VariableUpdate) -> VariableUpdate:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequest(f"variable {message.name}: unknown kind of update {message.kind}")

    name = message.name
    value = codec.array_from_proto(message.value, f"variable {name}")
    return VariableUpdate(name, kind, value)
