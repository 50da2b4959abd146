"""What a replica serves: tables and variables, which the copies of all ps fill."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.engine.serving_table import ServingTable
from megalith.engine.table.served import row_of
from megalith.errors import NotReady, UnknownTable, UnknownVariable, some_of
from megalith.kernels.dtypes import F32, I64
from megalith.schema import TableConfig
from megalith.schema.variable_parts import count_of, is_part_name, variable_of
from megalith.wire.routing import ps_names


@dataclass(slots=True)
class ServedTable:
    """A table, and the ps that have not sent all their rows of it yet, by index."""

    table: ServingTable
    lacking: set[int]

    @property
    def is_whole(self) -> bool:
        return not self.lacking


@dataclass(frozen=True, slots=True)
class _Held:
    """What one ps has: names of tables, and of variables or parts of them."""

    tables: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Arriving:
    """What one ps has begun to send since its last version, which may break off."""

    tables: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)


_CHECKPOINT = -1  # holds what came out of a checkpoint, until every ps has said what it has


class ServedModel:
    """Tables and variables by name. Any thread may call any method.

    `_lock` guards the dictionaries and which ps are lacking. Tables guard their own rows, and
    lookups take no lock there, so a row is always seen whole.
    """

    def __init__(self, num_ps: int) -> None:
        self._lock = threading.Lock()
        self._num_ps = num_ps

        self._tables: dict[str, ServedTable] = {}
        self._parts: dict[str, NDArray[Any]] = {}  # of variables, by name of the part
        self._splits: dict[str, int] = {}  # in how many parts a variable was sent last
        self._held: dict[int, _Held] = {}  # by index of the ps
        self._arriving: dict[int, _Arriving] = {}

    # --- reading ---

    def lookup(self, name: str, ids: I64) -> F32:
        """The rows of ids, zeros for absent ones."""
        return self._whole(name).lookup(ids)

    def width(self, name: str) -> int:
        """Numbers in a row of a table that is whole."""
        table = self._whole(name)
        dims = [segment.dim for segment in table.config.segments]
        return sum(dims)

    def _whole(self, name: str) -> ServingTable:
        with self._lock:
            found = self._tables.get(name)
            known = some_of(self._tables)

        if found is None:
            raise UnknownTable(f"this replica has no table {name!r}; it has {known}")

        if not found.is_whole:
            missing = ps_names(sorted(found.lacking))
            raise NotReady(f"table {name} is not whole here: {missing} has not sent all rows yet")

        return found.table

    def variable(self, name: str) -> NDArray[Any]:
        """The whole value."""
        with self._lock:
            count = self._splits.get(name, 1)
            parts = [part for part in self._parts if variable_of(part) == name]

            of_split = [part for part in parts if count_of(part) == count]
            of_split.sort(key=_part_index)
            values = [self._parts[part] for part in of_split]

            known = {variable_of(part) for part in self._parts}

        if not parts:
            raise UnknownVariable(
                f"this replica has no variable {name!r}; it has {some_of(known)}",
            )

        num_here = len(values)
        if num_here != count:
            raise NotReady(f"variable {name}: {num_here} of {count} parts are here yet")

        if count == 1:
            return values[0]

        return np.concatenate(values)

    @property
    def tables(self) -> list[ServedTable]:
        """By name."""
        with self._lock:
            names = sorted(self._tables)
            return [self._tables[name] for name in names]

    @property
    def variables(self) -> list[str]:
        """Names of whole variables, sorted."""
        with self._lock:
            names = {variable_of(part) for part in self._parts}

        return sorted(names)

    @property
    def rows(self) -> int:
        counts = [len(served.table) for served in self.tables]
        return sum(counts)

    @property
    def nbytes(self) -> int:
        sizes = [served.table.nbytes for served in self.tables]
        return sum(sizes)

    # --- filling ---

    def begin_table(self, config: TableConfig, index: int | None = None) -> ServingTable:
        """The table of that configuration; the ps of that index, if given, sends its rows.

        One of another row layout goes, with all its rows: every ps sends them anew.
        """
        unbounded = _without_budget(config)
        with self._lock:
            if index is not None:
                self._arriving_from(index).tables.add(config.name)

            found = self._tables.get(config.name)
            if found is not None:
                held = found.table
                if row_of(held.config) == row_of(config):
                    held.config = unbounded
                    return held

            table = ServingTable(unbounded)
            missing = set(range(self._num_ps))
            self._tables[config.name] = ServedTable(table, missing)
            return table

    def end_snapshot(self, table: ServingTable, index: int) -> None:
        """The ps of that index has sent all its rows of the table.

        A table that was begun anew meanwhile has none of them.
        """
        with self._lock:
            found = self._tables.get(table.config.name)
            if found is not None and found.table is table:
                found.lacking.discard(index)

    def lacks(self, name: str, index: int) -> bool:
        """Whether the ps of that index has not sent all its rows of the table yet."""
        with self._lock:
            found = self._tables.get(name)
            return found is None or index in found.lacking

    def table(self, name: str) -> ServingTable:
        """For a ps that fills it."""
        with self._lock:
            if name not in self._tables:
                raise UnknownTable(f"rows of table {name!r} came before the table")

            return self._tables[name].table

    def set_variables(self, values: dict[str, NDArray[Any]], index: int | None = None) -> None:
        """Take new values of variables, or parts; from the ps of that index, if given."""
        with self._lock:
            if index is not None:
                self._arriving_from(index).parts.update(values)

            self._parts.update(values)
            for part in values:
                self._splits[variable_of(part)] = count_of(part)

    def is_from_checkpoint(self) -> None:
        """All rows and variables of a checkpoint are here: every table is whole."""
        with self._lock:
            tables = frozenset(self._tables)
            parts = frozenset(self._parts)
            self._held[_CHECKPOINT] = _Held(tables, parts)

    def keep_only(self, index: int, tables: Sequence[str], parts: Sequence[str]) -> None:
        """The ps of that index has these tables, and these parts of variables.

        What no ps has any more goes.
        """
        with self._lock:
            held = self._held
            before = self._all_of(index)
            held[index] = _Held(frozenset(tables), frozenset(parts))
            self._let_go(before)

            is_everybody_heard = len(held) > self._num_ps
            if _CHECKPOINT in held and is_everybody_heard:
                saved = self._all_of(_CHECKPOINT)
                self._let_go(saved)

    def reshape(self, num_ps: int, *, is_another_run: bool = False) -> None:
        """There are so many ps from now on. Rows stay until the new ones have sent theirs.

        Another number is another run. Its ps send all their rows, so a table that was not whole is
        so only when all of them have.
        """
        with self._lock:
            if num_ps == self._num_ps and not is_another_run:
                return

            self._num_ps = num_ps
            for served in self._tables.values():
                if served.lacking:
                    served.lacking = set(range(num_ps))

            known = self._held.keys() | self._arriving.keys()
            too_many = [index for index in known if index >= num_ps]
            for index in too_many:
                before = self._all_of(index)
                self._let_go(before)

    def _arriving_from(self, index: int) -> _Arriving:
        return self._arriving.setdefault(index, _Arriving())

    def _all_of(self, index: int) -> _Held:
        """What one ps had, or has begun to send, which nobody holds for it any more."""
        held = self._held.pop(index, _Held())
        arriving = self._arriving.pop(index, _Arriving())
        return _Held(held.tables | arriving.tables, held.parts | arriving.parts)

    def _let_go(self, before: _Held) -> None:
        """Of what one ps had, drop what none has now, and none is sending."""
        gone_tables = set(before.tables)
        gone_parts = set(before.parts)
        everything: list[_Held | _Arriving] = [*self._held.values(), *self._arriving.values()]
        for others in everything:
            gone_tables -= others.tables
            gone_parts -= others.parts

        for table in gone_tables:
            self._tables.pop(table, None)

        for part in gone_parts:
            self._parts.pop(part, None)


def _without_budget(config: TableConfig) -> TableConfig:
    """The budget is that of a ps, for larger rows and fewer of them."""
    return replace(config, memory_budget_bytes=0, initial_capacity=1)


def _part_index(name: str) -> int:
    if not is_part_name(name):
        return 0

    _, _, part = name.rpartition("@")
    index, _, _ = part.partition("/")
    return int(index)
