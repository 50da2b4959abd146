"""A pull or push of a whole step, as the calls to each server and back."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._ids import Ids, Partition, RecentIds, check_width, checked_rows
from megalith.client._transport.requests import DataCall
from megalith.errors import MalformedArray, NonFiniteValue
from megalith.protos import common_pb2
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema import TableConfig
from megalith.wire import arrays, codec, frames
from megalith.wire.routing import Routing

ConfigOf = Callable[[str], TableConfig]  # a table's settings by its name

_TAGS: "dict[np.dtype[Any], common_pb2.DType.ValueType]" = {
    arrays.VALUE: common_pb2.DTYPE_FLOAT32,
    arrays.HALF: common_pb2.DTYPE_FLOAT16,
}
# Kinds of updates whose new value is in the reply.
_ANSWERED = (pb.VariableUpdate.KIND_ADD, pb.VariableUpdate.KIND_RAISE)


class PushOptions(TypedDict, total=False):
    """The keywords of `Cluster.push`, `begin_push` and of `FeatureSet.apply`, `begin_apply`."""

    # Gradients, by the names of variables. Their optimizers apply them.
    variable_gradients: Mapping[str, ArrayLike] | None
    # Summands, by the names of variables. The new values are returned.
    add_to_variables: Mapping[str, ArrayLike] | None
    # New values, by the names of variables.
    assign_variables: Mapping[str, ArrayLike] | None
    # Raises each element of a variable to at least this value, by name. Raising twice has the
    # effect of raising once. The new values are returned.
    raise_variables: Mapping[str, ArrayLike] | None
    # One rate per segment by table, in place of the table's own.
    learning_rates: Mapping[str, tuple[float, ...]] | None
    # Unix time of the data, in seconds, by which rows expire. A row keeps the latest time that it
    # was given. Without one (0) rows keep their time, and new ones get the newest of their table.
    req_time_s: int
    # Global step, for learning-rate schedules and optimizers that count steps.
    step: int


def check_known(options: PushOptions) -> None:
    """TypeError for a keyword that no push has, as for any function."""
    known = PushOptions.__annotations__
    unknown = sorted(options.keys() - known.keys())

    if unknown:
        wrong = ", ".join(unknown)
        possible = ", ".join(known)
        raise TypeError(f"a push has no keyword {wrong}; it has {possible}")


class PullPlan:
    """One call for each server concerned.

    Rows arrive in the order of the wire, in one matrix for each table.
    """

    def __init__(
        self,
        routing: Routing,
        tables: Mapping[str, ArrayLike | Ids],
        variables: Iterable[tuple[int, str]],
        recent: RecentIds,
        dtype: np.dtype[Any] = arrays.VALUE,
    ) -> None:
        self._dtype = dtype

        self._partitions: dict[str, Partition] = {}
        self._received: dict[str, NDArray[Any]] = {}

        # By ps index: the tables that it is asked about, each with its range of the wire's order.
        self._parts: dict[int, list[tuple[str, slice]]] = {}

        for table, ids in tables.items():
            partition = recent.partition(table, ids, routing)
            self._partitions[table] = partition

            for index, part in partition.parts():
                asked = self._parts.setdefault(index, [])
                asked.append((table, part))

        names: dict[int, list[str]] = {}
        for index, name in variables:
            names_of_server = names.setdefault(index, [])
            names_of_server.append(name)

        self.calls: dict[int, DataCall] = {}
        concerned = {*self._parts, *names}

        for index in sorted(concerned):
            names_of_server = names.get(index, [])
            self.calls[index] = self._call(index, names_of_server)

    def _call(self, index: int, variables: list[str]) -> DataCall:
        parts = self._parts.get(index, [])
        tag = _TAGS[self._dtype]
        message = pb.PullRequest(variables=variables, row_dtype=tag)
        ids: list[NDArray[np.int64]] = []

        for table, part in parts:
            message.tables.add(table=table)
            partition = self._partitions[table]
            ids.append(partition.ids[part])

        num_parts = len(parts)
        memory = partial(self._memory, index)
        return DataCall(message, ids, num_parts, memory)

    def _memory(self, index: int, number: int, nbytes: int) -> memoryview:
        """Where a server's rows of one table go; the first reply tells how wide they are."""
        table, part = self._parts[index][number]
        count = part.stop - part.start
        nbytes_of_column = count * self._dtype.itemsize
        width, rest = divmod(nbytes, nbytes_of_column)

        if table not in self._received:
            partition = self._partitions[table]
            shape = (partition.ids.size, width)
            self._received[table] = np.empty(shape, self._dtype)

        matrix = self._received[table]
        if rest or width != matrix.shape[1]:
            raise MalformedArray(
                f"table {table}: ps-{index} sent {nbytes} bytes, which do not fit the other rows"
            )

        return frames.as_bytes(matrix[part])

    def rows(self, config_of: ConfigOf) -> dict[str, NDArray[np.float32]]:
        """Rows by table in the order of the ids.

        `config_of` is asked about a table of which none was asked for.
        """
        rows = {}
        for table, partition in self._partitions.items():
            received = self._received.get(table)

            if received is None:
                config = config_of(table)
                rows[table] = np.empty((0, config.dim), np.float32)
                continue

            floats = received.astype(np.float32, copy=False)
            rows[table] = partition.spread(floats)

        return rows

    def variables(self, replies: Mapping[int, pb.PullResponse]) -> dict[str, NDArray[Any]]:
        """Values by name, or by the names of parts."""
        values = {}
        for index, reply in replies.items():
            message = self.calls[index].message
            assert isinstance(message, pb.PullRequest)

            asked = message.variables
            for name, value in zip(asked, reply.variables, strict=True):
                values[name] = codec.array_from_proto(value, f"variable {name}")

        return values


class PushPlan:
    """One call for each server concerned.

    Ids and gradients are slices of one matrix for each table.
    """

    def __init__(
        self,
        routing: Routing,
        config_of: ConfigOf,
        recent: RecentIds,
        dtype: np.dtype[Any] = arrays.VALUE,
    ) -> None:
        self._routing = routing
        self._config_of = config_of
        self._recent = recent
        self._dtype = dtype

        self._messages: dict[int, pb.PushRequest] = {}
        self._ids: dict[int, list[NDArray[np.int64]]] = {}
        self._gradients: dict[int, list[NDArray[Any]]] = {}

    def add_gradients(
        self, table: str, ids: ArrayLike | Ids, gradients: ArrayLike, rates: tuple[float, ...]
    ) -> None:
        """Gradients of one table, summed by id."""
        partition = self._recent.partition(table, ids, self._routing)
        values = self._encoded(table, partition, gradients)
        tag = _TAGS[self._dtype]

        for index, part in partition.parts():
            message = self._message(index)
            message.tables.add(
                table=table,
                learning_rates=rates,
                dtype=tag,
            )

            ids_of_server = self._ids.setdefault(index, [])
            ids_of_server.append(partition.ids[part])

            gradients_of_server = self._gradients.setdefault(index, [])
            gradients_of_server.append(values[part])

    def add_updates(self, updates: Iterable[tuple[int, pb.VariableUpdate]]) -> None:
        """Updates of variables or of their parts, each with its ps index."""
        for index, update in updates:
            message = self._message(index)
            message.variables.append(update)

    def set_time(self, req_time_s: int, step: int) -> None:
        """The time and the step of everything that was added."""
        for message in self._messages.values():
            message.req_time_s = req_time_s
            message.step = step

    def calls(self) -> dict[int, DataCall]:
        """By ps index. They share their messages with the plan, which reads their replies."""
        calls = {}
        for index, message in self._messages.items():
            ids = self._ids.get(index, [])
            gradients = self._gradients.get(index, [])

            calls[index] = DataCall(message, [*ids, *gradients])

        return calls

    def new_values(self, replies: Mapping[int, pb.PushResponse]) -> dict[str, NDArray[Any]]:
        """New values of the variables that were added to or raised, by name."""
        values = {}
        for index, reply in replies.items():
            answered = []
            for update in self._messages[index].variables:
                if update.kind in _ANSWERED:
                    answered.append(update.name)

            for name, value in zip(answered, reply.added, strict=True):
                values[name] = codec.array_from_proto(value, f"variable {name}")

        return values

    def _message(self, index: int) -> pb.PushRequest:
        return self._messages.setdefault(index, pb.PushRequest())

    def _encoded(self, table: str, partition: Partition, gradients: ArrayLike) -> NDArray[Any]:
        config = self._config_of(table)
        count = partition.slots.size
        checked = checked_rows(
            table,
            "gradients",
            gradients,
            count,
            skips_nonfinite=config.skip_nonfinite,
        )

        dim = config.dim
        # A dc segment takes the pulled weights beside the gradients.
        widths = (dim, 2 * dim)
        check_width(table, "gradients", checked, widths)

        summed = partition.summed(checked, dim)
        if self._dtype != arrays.HALF:
            return summed

        largest = np.abs(summed).max(initial=0.0)
        if largest > arrays.MAX_HALF:
            raise NonFiniteValue(
                f"table {table}: a summed gradient is beyond float16; nothing was sent, use float32"
            )

        return summed.astype(arrays.HALF)
