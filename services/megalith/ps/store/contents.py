"""The tables and variables of one parameter server by name, behind the routing map.

The map says which buckets of ids this ps owns, and whether a request came to the right server.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels import ownership
from megalith.engine.table.conversion import Converted, converted
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.engine.variable.variable import Variable
from megalith.errors import (
    DuplicateIds,
    NotReady,
    ShardNotOwned,
    StaleEpoch,
    TableConflict,
    UnknownTable,
    UnknownVariable,
    some_of,
)
from megalith.schema import TableConfig, VariableConfig
from megalith.schema.variable_parts import VariableShape
from megalith.wire.routing import NUM_BUCKETS, Routing

logger = logging.getLogger(__name__)


def require_distinct(what: str, names: Iterable[str]) -> None:
    """DuplicateIds if a name occurs twice; `what` says of what."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DuplicateIds(f"{what} {name} occurs twice in one request")
        seen.add(name)


@dataclass(frozen=True, slots=True)
class OwnedBuckets:
    """Those of one ps index in a routing map. Never changes: a new map makes a new one.

    Until the chief has initialized the map's epoch, a table or variable that is missing is a matter
    of time.
    """

    index: int
    routing: Routing | None = None
    is_initialized: bool = False

    @property
    def epoch(self) -> int:
        """Of the map; 0 = there is none yet."""
        return self.routing.epoch if self.routing else 0

    def at(self, epoch: int) -> "RoutedBuckets":
        """What a request that was routed at `epoch` may rely on.

        Another epoch than the map's is refused.
        """
        if self.routing is None or epoch > self.epoch:
            raise NotReady(
                f"ps-{self.index} is at epoch {self.epoch}, the request at {epoch}; "
                "retry in a moment"
            )

        if epoch < self.epoch:
            raise StaleEpoch(
                f"the request was routed at epoch {epoch}, ps-{self.index} is at {self.epoch}"
            )

        return RoutedBuckets(self.index, self.routing)

    def check_initialized(self, what: str) -> None:
        """Raise NotReady about something that is missing, while it may still be created."""
        if not self.is_initialized:
            raise NotReady(
                f"ps-{self.index} has no {what} yet: the chief is still creating them; "
                "retry in a moment"
            )

    def mask(self) -> NDArray[np.bool_]:
        """By bucket, whether this server owns it; without a map it may be any."""
        if self.routing is None:
            return np.ones(NUM_BUCKETS, np.bool_)

        return np.asarray(self.routing.owners == self.index)


@dataclass(frozen=True, slots=True)
class RoutedBuckets:
    """The buckets of one ps index in the map by which a request was routed."""

    index: int
    routing: Routing

    def check_owned(self, table: str, ids: NDArray[np.int64]) -> None:
        """Raise ShardNotOwned if any id belongs to another server."""
        if ownership.all_owned(ids, self.routing.owners, self.index):
            return

        owners = self.routing.owner_of(ids)
        foreign = np.flatnonzero(owners != self.index)

        first = foreign[0]
        first_id = int(ids[first])
        its_owner = int(owners[first])
        raise ShardNotOwned(
            f"table {table}: {foreign.size} of {ids.size} ids are not of shard {self.index} "
            f"at epoch {self.routing.epoch}, the first is {first_id} of shard {its_owner}; "
            "refresh routing"
        )

    def check_owned_variable(self, config: VariableConfig) -> None:
        """Raise ShardNotOwned if the variable, or this part of it, belongs to another server."""
        part = config.part.index if config.part else 0
        owner = self.routing.owner_of_part(config.name, part)
        if owner != self.index:
            raise ShardNotOwned(
                f"variable {config.part_name} is of shard {owner}, not of shard {self.index}, "
                f"at epoch {self.routing.epoch}; refresh routing"
            )

    def check_owned_blob(self, name: str) -> None:
        """Raise ShardNotOwned if a blob of that name belongs to another server."""
        owner = self.routing.owner_of_name(name)
        if owner != self.index:
            raise ShardNotOwned(
                f"blob {name!r} is of shard {owner}, not of shard {self.index}, "
                f"at epoch {self.routing.epoch}; refresh routing"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """What a request names, in its order, and the buckets by which it was routed."""

    buckets: RoutedBuckets
    tables: list[EmbeddingTable]
    variables: list[Variable]


class Contents:
    """Tables and variables by name.

    `_lock` guards them, which tables are claimed, and the buckets; tables and variables guard their
    own contents.
    """

    def __init__(self, index: int) -> None:
        self._lock = threading.Lock()
        self._owned = OwnedBuckets(index)
        self._tables: dict[str, EmbeddingTable] = {}
        self._claimed: set[str] = set()  # tables that a program of this run has created
        self._variables: dict[str, Variable] = {}

    # --- routing ---

    @property
    def index(self) -> int:
        return self._owned.index

    @property
    def epoch(self) -> int:
        """Of the newest map; 0 = none yet."""
        return self._owned.epoch

    def take_index(self, index: int) -> None:
        """From now on this is the ps of that index in the map; before the first map only."""
        with self._lock:
            self._owned = replace(self._owned, index=index)

    def route(self, routing: Routing | None, is_initialized: bool) -> None:
        """Obey this map. Until its epoch is initialized, a missing table is a matter of time."""
        with self._lock:
            self._owned = replace(self._owned, routing=routing, is_initialized=is_initialized)

    def buckets(self) -> NDArray[np.bool_]:
        """By bucket, whether this server owns it; without a map it may be any."""
        return self._owned.mask()

    def mapped_buckets(self) -> NDArray[np.bool_]:
        """By bucket, whether the map gives it to this server; NotReady while there is no map."""
        owned = self._owned
        if owned.routing is None:
            raise NotReady(
                f"ps-{owned.index} has no map now, so it is not known which rows are its own: "
                "the cluster is forming; retry in a moment"
            )

        return owned.mask()

    def routed_at(self, epoch: int) -> RoutedBuckets:
        """What a request that was routed at `epoch` may rely on; another epoch is refused."""
        with self._lock:
            return self._owned.at(epoch)

    # --- creation ---

    def create_tables(
        self, epoch: int, configs: Sequence[TableConfig], allow_new_layout: bool = False
    ) -> dict[str, Converted]:
        """Create what is missing and give what exists its new settings.

        One of another layout is a TableConflict, settings that cannot be are an InvalidSetting;
        nothing is changed. With `allow_new_layout` a table that came out of a checkpoint, and that
        no program of this run has created yet, takes the new layout; what became of the rows of
        such tables is returned by name. Nobody may write meanwhile.
        """
        require_distinct("table", [config.name for config in configs])
        prepared = self._convert_free(epoch, configs) if allow_new_layout else {}
        with self._lock:
            self._owned.at(epoch)
            fresh: list[EmbeddingTable] = []
            known: list[tuple[EmbeddingTable, TableConfig]] = []

            for config in configs:
                table = self._tables.get(config.name)
                if table is None:
                    fresh.append(EmbeddingTable(config))
                else:
                    known.append((table, config))

            changes: dict[str, Converted] = {}
            for table, config in known:
                change = prepared.get(config.name)
                is_free = config.name not in self._claimed
                if change is not None and change.old is table and is_free:
                    changes[config.name] = change
                else:
                    table.check_config(config)

            for table, config in known:
                if config.name not in changes:
                    table.reconfigure(config)

            for name, change in changes.items():
                self._tables[name] = change.table
                logger.warning(
                    "table %s has a new layout: the weights of %d rows stay and their optimizers "
                    "begin anew, %d rows are gone",
                    name,
                    change.kept,
                    change.dropped,
                )

            for table in fresh:
                self._tables[table.config.name] = table

            self._claimed.update(config.name for config in configs)
            return changes

    def _convert_free(self, epoch: int, configs: Sequence[TableConfig]) -> dict[str, Converted]:
        """Tables of a new layout for those that may take it, not in their places yet.

        A million rows take about a second, so `_lock` is not held: a server that does not report
        meanwhile would lose its seat.
        """
        with self._lock:
            self._owned.at(epoch)
            free = []
            for config in configs:
                table = self._tables.get(config.name)
                if table is not None and config.name not in self._claimed:
                    free.append((table, config))

        changes = {}
        for table, config in free:
            if RowLayout(config).signature != table.layout.signature:
                changes[config.name] = converted(table, config)

        return changes

    def is_claimed(self, name: str) -> bool:
        """Whether a program of this run has created that table, or created it again."""
        with self._lock:
            return name in self._claimed

    def drop_table(self, name: str) -> EmbeddingTable | None:
        """Forget a table that no program of this run has created; None if there is none."""
        with self._lock:
            if name in self._claimed:
                raise TableConflict(
                    f"table {name} is in use: a program of this run has created it; "
                    "only tables that the model has no longer can be dropped"
                )

            return self._tables.pop(name, None)

    def create_variables(self, epoch: int, configs: Sequence[VariableConfig]) -> None:
        """Create what is missing with its initial value; what exists keeps its value.

        One of another layout, or split into other parts, is a TableConflict and nothing is created.
        """
        require_distinct("variable", [config.part_name for config in configs])
        with self._lock:
            buckets = self._owned.at(epoch)
            known: list[tuple[Variable, VariableConfig]] = []
            for config in configs:
                buckets.check_owned_variable(config)

                for held in self._variables.values():
                    if _collide(held.config, config):
                        known.append((held, config))

            for variable, config in known:
                variable.check_layout(config)
            for variable, config in known:
                variable.reconfigure(config)

            for config in configs:
                if config.part_name not in self._variables:
                    self._variables[config.part_name] = Variable(config)

    def describe_variables(self, epoch: int, names: Sequence[str]) -> list[VariableShape]:
        """The whole of each variable whose first part, or only one, is here."""
        with self._lock:
            self._owned.at(epoch)
            first_parts = {}
            for variable in self._variables.values():
                part = variable.config.part
                if part is None or part.index == 0:
                    first_parts[variable.config.name] = variable

            return [self._variable(first_parts, name).whole for name in names]

    def adopt(self, table: EmbeddingTable | None = None, variable: Variable | None = None) -> None:
        """Take a restored table or variable, before there is a map."""
        with self._lock:
            if table is not None:
                self._tables[table.config.name] = table
            if variable is not None:
                self._variables[variable.config.part_name] = variable

    # --- what is there ---

    def find(self, epoch: int, tables: Sequence[str], variables: Sequence[str] = ()) -> Found:
        """What a request names that was routed at `epoch`.

        UnknownTable or UnknownVariable, or NotReady while it may still be created.
        """
        with self._lock:
            buckets = self._owned.at(epoch)
            return Found(
                buckets,
                [self._table(name) for name in tables],
                [self._variable(self._variables, name) for name in variables],
            )

    def find_table(self, epoch: int, name: str) -> tuple[RoutedBuckets, EmbeddingTable | None]:
        """Like `find` for one table, of which None means that it will not be created either."""
        with self._lock:
            buckets = self._owned.at(epoch)
            table = self._tables.get(name)
            if table is None:
                self._owned.check_initialized(f"table {name}")

            return buckets, table

    def present_variables(self, names: Sequence[str]) -> list[Variable]:
        """Those of the variables that are here."""
        with self._lock:
            return [self._variables[name] for name in names if name in self._variables]

    def width_of(self, name: str) -> int:
        """Floats of one row of a table; 0 if the table is not here."""
        with self._lock:
            table = self._tables.get(name)
            return 0 if table is None else table.config.dim

    def tables(self) -> list[EmbeddingTable]:
        """By name."""
        with self._lock:
            return [self._tables[name] for name in sorted(self._tables)]

    def variables(self) -> list[Variable]:
        """By name, parts in order."""
        with self._lock:
            return [self._variables[name] for name in sorted(self._variables)]

    def _table(self, name: str) -> EmbeddingTable:
        if name not in self._tables:
            self._owned.check_initialized(f"table {name}")
            raise UnknownTable(
                f"ps-{self._owned.index} has no table {name!r}; it has {some_of(self._tables)}"
            )

        return self._tables[name]

    def _variable(self, variables: Mapping[str, Variable], name: str) -> Variable:
        if name not in variables:
            self._owned.check_initialized(f"variable {name}")
            has = some_of(self._variables)
            raise UnknownVariable(f"ps-{self._owned.index} has no variable {name!r}; it has {has}")

        return variables[name]


def _collide(held: VariableConfig, asked: VariableConfig) -> bool:
    """The same variable, but not another part of the same split."""
    if held.name != asked.name:
        return False
    if held.part is None or asked.part is None:
        return True

    is_same_part = held.part.index == asked.part.index
    is_other_split = held.part.count != asked.part.count
    return is_same_part or is_other_split
