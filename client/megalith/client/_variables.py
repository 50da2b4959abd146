"""Dense variables as whole arrays, whatever servers and parts they are on."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._plans import PushOptions
from megalith.client._transport.servers import Servers
from megalith.errors import (
    DtypeMismatch,
    DuplicateIds,
    InvalidRequest,
    NonFiniteValue,
    ShapeMismatch,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema import VariableConfig
from megalith.schema.checks import as_array
from megalith.schema.variable_parts import Part, VariableShape, part_name, parts_of
from megalith.wire import codec, forking

_KINDS = {
    pb.VariableUpdate.KIND_GRADIENT: "gradient",
    pb.VariableUpdate.KIND_ADD: "summand",
    pb.VariableUpdate.KIND_ASSIGN: "new value",
    pb.VariableUpdate.KIND_RAISE: "least value",
}

# The keyword of a push that each kind of update comes from, and what its values are.
_OPTIONS = {
    pb.VariableUpdate.KIND_GRADIENT: ("variable_gradients", "gradients"),
    pb.VariableUpdate.KIND_ADD: ("add_to_variables", "summands"),
    pb.VariableUpdate.KIND_ASSIGN: ("assign_variables", "new values"),
    pb.VariableUpdate.KIND_RAISE: ("raise_variables", "least values"),
}


class DenseVariables:
    """Splits updates of variables into their parts and joins what was read. Thread-safe.

    `_lock` guards the shapes learnt so far. They hold for one number of servers, on which the split
    depends.
    """

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s

        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, str], VariableShape] = {}
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        self._lock = threading.Lock()

    def create(self, configs: Iterable[VariableConfig]) -> None:
        """Create what is missing, part by part; what exists keeps its value."""
        routing = self._servers.routing()
        # The server that owns the name knows of a variable in other parts. It is asked first, so
        # that a conflict is noticed before any other server has made its part.
        first: dict[int, pb.CreateVariablesRequest] = {}
        others: dict[int, pb.CreateVariablesRequest] = {}

        num_ps = len(routing.addresses)

        for config in configs:
            for piece in config.split(num_ps):
                number = piece.part.index if piece.part else 0
                index = routing.owner_of_part(piece.name, number)

                requests = others if number else first
                request = requests.setdefault(index, pb.CreateVariablesRequest())
                request.variables.append(codec.variable_to_proto(piece))

        self._servers.call(lambda stub: stub.CreateVariables, first, self._timeout_s)
        self._servers.call(lambda stub: stub.CreateVariables, others, self._timeout_s)

    def part_names(self, names: Iterable[str]) -> list[tuple[int, str]]:
        """(ps index, name) of every part of the variables, in the order of reading."""
        routing = self._servers.routing()
        located: list[tuple[int, str]] = []

        for name, shape in self._known(names).items():
            for number, part in enumerate(_parts(shape)):
                index = routing.owner_of_part(name, number)
                located.append((index, part_name(name, part)))

        return located

    def joined(
        self, names: Iterable[str], received: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Whole values by name, from those of all parts by their names."""
        values = {}
        for name, shape in self._known(names).items():
            pieces = []
            for part in _parts(shape):
                received_as = part_name(name, part)
                pieces.append(received[received_as])

            if len(pieces) == 1:
                values[name] = pieces[0]
            else:
                values[name] = np.concatenate(pieces)

        return values

    def updates(self, options: PushOptions) -> Iterator[tuple[int, pb.VariableUpdate]]:
        """(ps index, update of one part).

        Everything is checked before the first one is given out.
        """
        by_kind = {}
        for kind, (option, what) in _OPTIONS.items():
            by_kind[kind] = _arguments.by_name(options.get(option), option, what)

        names: list[str] = []
        for values in by_kind.values():
            names.extend(values)

        shapes = self._known(names)
        if len(shapes) < len(names):
            twice = [name for name in sorted(shapes) if names.count(name) > 1]
            listed = ", ".join(twice)
            raise DuplicateIds(f"variables {listed} are given more than one update in one push")

        checked = []
        for kind, values in by_kind.items():
            for name, value in values.items():
                array = _checked(name, shapes[name], kind, value)
                checked.append((kind, name, array))

        routing = self._servers.routing()

        for kind, name, array in checked:
            parts = _parts(shapes[name])

            for number, part in enumerate(parts):
                rows = array if part is None else array[part.start : part.stop]

                update = pb.VariableUpdate(
                    name=part_name(name, part),
                    kind=kind,
                    value=codec.array_to_proto(rows),
                )

                index = routing.owner_of_part(name, number)
                yield index, update

    def _known(self, names: Iterable[str]) -> dict[str, VariableShape]:
        """The shapes of distinct variables.

        One not known yet is asked for at the server that owns its name.
        """
        wanted = list(dict.fromkeys(names))
        routing = self._servers.routing()
        num_ps = len(routing.addresses)

        with self._lock:
            missing = [name for name in wanted if (num_ps, name) not in self._shapes]

        if missing:
            requests: dict[int, pb.DescribeVariablesRequest] = {}
            for name in missing:
                owner = routing.owner_of_name(name)
                request = requests.setdefault(owner, pb.DescribeVariablesRequest())
                request.names.append(name)

            replies = self._servers.call(
                lambda stub: stub.DescribeVariables, requests, self._timeout_s
            )

            with self._lock:
                for index, reply in replies.items():
                    asked = requests[index].names

                    for name, message in zip(asked, reply.variables, strict=True):
                        shape = codec.variable_shape_from_proto(message)
                        self._shapes[num_ps, name] = shape

        with self._lock:
            return {name: self._shapes[num_ps, name] for name in wanted}


def _parts(shape: VariableShape) -> list[Part | None]:
    num_rows = shape.shape[0] if shape.shape else 1
    return parts_of(num_rows, shape.parts)


def _checked(
    name: str, shape: VariableShape, kind: "pb.VariableUpdate.Kind.ValueType", value: ArrayLike
) -> NDArray[Any]:
    """The update in the variable's dtype.

    A refusal here is one before any server has seen a part of it.
    """
    what = f"variable {name}: the {_KINDS[kind]}"
    array: NDArray[Any] = as_array(value, what)

    if kind == pb.VariableUpdate.KIND_GRADIENT and not shape.takes_gradients:
        raise InvalidRequest(
            f"variable {name} has no optimizer: it can be assigned, added to and raised, "
            "but takes no gradients"
        )

    are_numbers = array.dtype.kind in "iuf"
    is_castable = are_numbers and np.can_cast(array.dtype, shape.dtype, "same_kind")
    if array.shape != shape.shape or not is_castable:
        error = ShapeMismatch if is_castable else DtypeMismatch
        found = f"{array.dtype} {list(array.shape)}"
        expected = f"{shape.dtype} {list(shape.shape)}"

        raise error(f"{what} is {found}, expected {expected}")

    # numpy takes uint64 to int64 for a cast of the same kind, and large values become negative.
    is_narrowed = shape.dtype.kind == "i" and array.dtype.kind == "u"
    if is_narrowed and array.size > 0:
        largest = array.max()
        limit = np.iinfo(shape.dtype).max
        if largest > limit:
            raise InvalidRequest(
                f"{what} holds {largest}, which is no {shape.dtype}; nothing was sent"
            )

    with np.errstate(over="ignore"):  # what does not fit is infinite and refused below
        array = array.astype(shape.dtype, copy=False)

    if not np.isfinite(array).all():
        raise NonFiniteValue(f"{what} holds NaN or infinity; nothing was sent")

    return array
