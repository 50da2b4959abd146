"""A pull or push of a whole step, as the calls to each server and back."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._data_call import DataCall
from megalith.client._ids import Ids, RecentIds
from megalith.client._partition import Partition, check_width, checked_rows
from megalith.protos import common_pb2
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import arrays, codec, frames
from megalith.wire.errors import MalformedArray, NonFiniteValue
from megalith.wire.routing import Routing
from megalith.wire.schema import TableConfig

_TAGS: "dict[np.dtype[Any], common_pb2.DType.ValueType]" = {
    arrays.VALUE: common_pb2.DTYPE_FLOAT32,
    arrays.HALF: common_pb2.DTYPE_FLOAT16,
}
_ANSWERED = (
    pb.VariableUpdate.KIND_ADD,
    pb.VariableUpdate.KIND_RAISE,
)  # kinds whose new value is in the reply


class PullPlan:
    """One call for each server concerned. Rows arrive in the order of the wire, in one matrix for each table."""

    def __init__(
        self,
        routing: Routing,
        tables: Mapping[str, ArrayLike | Ids],
        variables: Iterable[tuple[int, str]],
        recent: RecentIds,
        dtype: np.dtype[Any] = arrays.VALUE,
    ) -> None:
        self._dtype = dtype
        self._partitions = {
            table: recent.partition(table, ids, routing) for table, ids in tables.items()
        }
        self._received: dict[str, NDArray[Any]] = {}
        self._parts: dict[int, list[tuple[str, slice]]] = {}
        names: dict[int, list[str]] = {}
        for table, partition in self._partitions.items():
            for index, part in partition.parts():
                self._parts.setdefault(index, []).append((table, part))
        for index, name in variables:
            names.setdefault(index, []).append(name)
        self.calls = {
            index: self._call(index, names.get(index, []))
            for index in sorted({*self._parts, *names})
        }

    def _call(self, index: int, variables: list[str]) -> DataCall:
        parts = self._parts.get(index, [])
        message = pb.PullRequest(
            tables=[pb.TableKeys(table=table) for table, _ in parts],
            variables=variables,
            row_dtype=_TAGS[self._dtype],
        )
        keys = [self._partitions[table].keys[part] for table, part in parts]
        return DataCall(message, keys, len(parts), partial(self._memory, index))

    def _memory(self, index: int, place: int, nbytes: int) -> memoryview:
        """Where a server's rows of one table go; the first reply tells how wide they are."""
        table, part = self._parts[index][place]
        width, rest = divmod(nbytes, (part.stop - part.start) * self._dtype.itemsize)
        if table not in self._received:
            self._received[table] = np.empty(
                (self._partitions[table].keys.size, width), self._dtype
            )
        matrix = self._received[table]
        if rest or width != matrix.shape[1]:
            raise MalformedArray(
                f"table {table}: ps {index} sent {nbytes} bytes, which do not fit the other rows"
            )
        return frames.as_bytes(matrix[part])

    def rows(self, config_of: Callable[[str], TableConfig]) -> dict[str, NDArray[np.float32]]:
        """Rows by table in the order of the ids; `config_of` is asked about a table of which none was asked for."""
        return {
            table: partition.spread(self._received[table].astype(np.float32, copy=False))
            if table in self._received
            else np.empty((0, config_of(table).dim), np.float32)
            for table, partition in self._partitions.items()
        }

    def variables(self, replies: Mapping[int, pb.PullResponse]) -> dict[str, NDArray[Any]]:
        """Values by name."""
        return {
            name: codec.array_from_proto(value, f"variable {name}")
            for index, reply in replies.items()
            for name, value in zip(self._names(index), reply.variables, strict=True)
        }

    def _names(self, index: int) -> Iterable[str]:
        message = self.calls[index].message
        return message.variables if isinstance(message, pb.PullRequest) else ()


class PushPlan:
    """One call for each server concerned; keys and gradients are slices of one matrix for each table."""

    def __init__(
        self,
        routing: Routing,
        config_of: Callable[[str], TableConfig],
        recent: RecentIds,
        dtype: np.dtype[Any] = arrays.VALUE,
    ) -> None:
        self._routing, self._config_of, self._recent, self._dtype = (
            routing,
            config_of,
            recent,
            dtype,
        )
        self._messages: dict[int, pb.PushRequest] = {}
        self._keys: dict[int, list[NDArray[np.int64]]] = {}
        self._gradients: dict[int, list[NDArray[Any]]] = {}

    def add_gradients(
        self, table: str, ids: ArrayLike | Ids, gradients: ArrayLike, rates: tuple[float, ...]
    ) -> None:
        """Gradients of one table, summed by id."""
        partition = self._recent.partition(table, ids, self._routing)
        values = self._encoded(table, partition, gradients)
        for index, part in partition.parts():
            message = pb.TableGradients(table=table, learning_rates=rates, dtype=_TAGS[self._dtype])
            self._message(index).tables.append(message)
            self._keys.setdefault(index, []).append(partition.keys[part])
            self._gradients.setdefault(index, []).append(values[part])

    def add_updates(self, updates: Iterable[tuple[int, pb.VariableUpdate]]) -> None:
        """Updates of variables or of their parts, each with its ps index."""
        for index, update in updates:
            self._message(index).variables.append(update)

    def messages(self) -> dict[int, pb.PushRequest]:
        """By ps index, to be stamped with an identity before `calls`."""
        return self._messages

    def calls(self) -> dict[int, DataCall]:
        return {
            index: DataCall(message, [*self._keys.get(index, ()), *self._gradients.get(index, ())])
            for index, message in self._messages.items()
        }

    def added(self, replies: Mapping[int, pb.PushResponse]) -> dict[str, NDArray[Any]]:
        """New values of the variables that were added to or raised, by name."""
        return {
            name: codec.array_from_proto(value, f"variable {name}")
            for index, reply in replies.items()
            for name, value in zip(_added_names(self._messages[index]), reply.added, strict=True)
        }

    def _message(self, index: int) -> pb.PushRequest:
        return self._messages.setdefault(index, pb.PushRequest())

    def _encoded(self, table: str, partition: Partition, gradients: ArrayLike) -> NDArray[Any]:
        checked = checked_rows(
            table,
            "gradients",
            gradients,
            partition.slots.size,
            lambda table: self._config_of(table).skip_nonfinite,
        )
        dim = self._config_of(table).dim
        check_width(
            table, "gradients", checked, (dim, 2 * dim)
        )  # a dc segment takes the pulled weights beside them
        summed = partition.summed(checked, dim if partition.has_repeated else None)
        if self._dtype != arrays.HALF:
            return summed
        if summed.size and np.abs(summed).max() > arrays.MAX_HALF:
            raise NonFiniteValue(
                f"table {table}: a summed gradient is beyond float16; nothing was sent, use float32"
            )
        return summed.astype(arrays.HALF)


def _added_names(message: pb.PushRequest) -> list[str]:
    return [update.name for update in message.variables if update.kind in _ANSWERED]
