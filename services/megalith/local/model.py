"""The tables and variables of a task in this process, with the pulls and pushes of a cluster."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from megalith.checkpoint.files.applied import AppliedWrites
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.storage.location import Location
from megalith.client import Ids
from megalith.engine.table import checks
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import UnknownTable, UnknownVariable
from megalith.kernels.dtypes import F32, Bools
from megalith.schema import TableConfig, VariableConfig
from megalith.wire.reports import RestoreReport
from megalith.wire.routing import NUM_BUCKETS
from megalith.worker.task import IdsByTable, Read, RowsByTable, Variables

# Ids that a thread gets at least: it takes as long to wake one as to read or write 1,000 rows.
_FEWEST_IDS = 4096


class LocalModel:
    """Tables and variables without a server; a `ShardHolder` that holds all buckets.

    Rows start as they would on any server, because they are drawn by seed and id. With
    `num_threads` above 1, tables, runs of the ids of one table, and variables are read and written
    beside each other. For one caller at a time.
    """

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads
        self._tables: dict[str, EmbeddingTable] = {}
        self._variables: dict[str, Variable] = {}
        self._blobs: dict[str, bytes] = {}  # of the checkpoint that it goes on from
        self._configs: dict[str, TableConfig] = {}

        self._threads: ThreadPoolExecutor | None = None
        if num_threads > 1:
            self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tables")

    def create(self, tables: Iterable[TableConfig], variables: Iterable[VariableConfig]) -> None:
        """What is missing is made. What exists keeps its rows, and takes the settings."""
        for config in tables:
            self._configs[config.name] = config
            # Nobody follows the changes of a table here, so none are noted.
            unfollowed = replace(config, touched_capacity=0)
            if config.name in self._tables:
                self._tables[config.name].reconfigure(unfollowed)
            else:
                self._tables[config.name] = EmbeddingTable(unfollowed)

        for variable in variables:
            if variable.name in self._variables:
                self._variables[variable.name].reconfigure(variable)
            else:
                self._variables[variable.name] = Variable(variable)

    def settings(self) -> dict[str, object]:
        """Of each table and variable all but its content, as a checkpoint would say it."""
        said: dict[str, object] = {}
        for name, table in self._tables.items():
            said[f"table {name}"] = self._configs.get(name, table.config)

        for name, variable in self._variables.items():
            config = variable.config
            initial = config.initial
            said[f"variable {name}"] = (
                initial.shape,
                initial.dtype,
                config.optimizer,
                config.schedule,
                config.part,
            )

        return said

    def restore(self, directory: Location, *, over_budget: bool = False) -> RestoreReport:
        """Take all rows and variables of a checkpoint and its increments, or raise."""
        owners = np.zeros(NUM_BUCKETS, np.uint16)
        index = 0
        return restore_shard(
            self,
            directory,
            owners,
            index,
            over_budget=over_budget,
        )

    def read(self, ids: IdsByTable, variables: Sequence[str]) -> tuple[RowsByTable, Variables]:
        """The rows of these ids, zeros for those without a row, and the variables."""
        rows = {}
        lookups: list[Callable[[], object]] = []
        for name, given in ids.items():
            table = self._table(name)
            values = given.values if isinstance(given, Ids) else given
            wanted = np.ascontiguousarray(values, np.int64)

            num_ids = len(wanted)
            shape = (num_ids, table.layout.dim)
            found = np.empty(shape, np.float32)
            rows[name] = found

            for run in self._runs(num_ids):
                lookup = partial(table.lookup, wanted[run], found[run])
                lookups.append(lookup)

        self._do_all(lookups)

        read = {}
        for name in variables:
            read[name] = self._variable(name).read()

        return rows, read

    def push(
        self,
        gradients: Mapping[str, tuple[Ids, F32]],
        variable_gradients: Variables,
        *,
        req_time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Apply all gradients; nothing is applied if one of them is refused.

        Those of equal ids are added up first, as a client of a cluster does it. So an admission
        filter sees an id once for each push, however often it is repeated.
        """
        summed = {}
        for name, (ids, grads) in gradients.items():
            summed[name] = self._summed(name, ids, grads)

        self._apply(summed, variable_gradients, req_time_s=req_time_s, step=step)

    def _summed(self, name: str, ids: Ids, grads: F32) -> tuple[Ids, F32]:
        if ids.is_distinct:
            return ids, grads

        table = self._table(name)
        table.check_gradients(ids.values, grads)  # their shape, before they are added
        found, sums, _ = checks.sum_by_id(ids.values, grads, table.layout.dim)
        return Ids(found, distinct=True), sums

    def _apply(
        self,
        gradients: Mapping[str, tuple[Ids, F32]],
        variable_gradients: Variables,
        *,
        req_time_s: int,
        step: int,
    ) -> None:
        """`push` of gradients that several programs have pushed together.

        An admission filter sees an id as often as it is repeated.
        """
        rates = {}
        for name, (ids, grads) in gradients.items():
            table = self._table(name)
            rates[name] = table.check_gradients(
                ids.values,
                grads,
                None,
                step,
                dedup=not ids.is_distinct,
            )

        for name, gradient in variable_gradients.items():
            variable = self._variable(name)
            variable.check(UpdateKind.GRADIENT, gradient, step)

        updates: list[Callable[[], object]] = []
        for name, (ids, grads) in gradients.items():
            table = self._tables[name]
            for run in self._write_runs(table, ids):
                update = partial(
                    table.apply_checked,
                    ids.values[run],
                    grads[run],
                    rates[name],
                    req_time_s=req_time_s,
                    step=step,
                    dedup=not ids.is_distinct,
                )
                updates.append(update)

        for name, gradient in variable_gradients.items():
            variable = self._variables[name]
            apply = partial(variable.apply, UpdateKind.GRADIENT, gradient, step)
            updates.append(apply)

        self._do_all(updates)

    def evaluated(self, evaluate: Callable[[Read], dict[str, float]]) -> dict[str, float]:
        """What an evaluation says of this model."""
        return evaluate(self.read)

    @property
    def num_rows(self) -> int:
        counts = [len(table) for table in self._tables.values()]
        return sum(counts)

    def rows_by_table(self) -> dict[str, int]:
        return {name: len(table) for name, table in self._tables.items()}

    def check_copies(self) -> None:
        """Raise unless all copies of the variables are the same; here there is one."""

    @contextlib.contextmanager
    def as_saved(self) -> Iterator[None]:
        """Inside, tables have the settings that a checkpoint should give to whoever restores it."""
        for name, config in self._configs.items():
            self._tables[name].reconfigure(config)
        try:
            yield
        finally:
            for name, config in self._configs.items():
                unfollowed = replace(config, touched_capacity=0)
                self._tables[name].reconfigure(unfollowed)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    # ------------------------------------------------------------------ as a ShardHolder

    def tables(self) -> list[EmbeddingTable]:
        return list(self._tables.values())

    def variables(self) -> list[Variable]:
        return list(self._variables.values())

    def blobs(self) -> dict[str, bytes]:
        return dict(self._blobs)

    def adopt_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Nobody asks for them here, but the next checkpoint has them again."""
        self._blobs = dict(blobs)

    def buckets(self) -> Bools:
        return np.ones(NUM_BUCKETS, np.bool_)

    def cut(self) -> AbstractContextManager[None]:
        return nullcontext()

    def applied_writes(self) -> AppliedWrites:
        """None: there are no clients whose writes could be repeated."""
        return AppliedWrites("", ())

    def adopt_writes(self, applied: AppliedWrites) -> None:
        """Nobody repeats a write here."""

    def adopt(self, table: EmbeddingTable | None = None, variable: Variable | None = None) -> None:
        if table is not None:
            self._tables[table.config.name] = table

        if variable is not None:
            self._variables[variable.config.name] = variable

    def _runs(self, num_ids: int) -> list[slice]:
        """What each thread does of so many ids."""
        num_worthwhile = num_ids // _FEWEST_IDS
        count = max(1, min(self._num_threads, num_worthwhile))
        bounds = [num_ids * number // count for number in range(count + 1)]

        runs = []
        for begin, end in itertools.pairwise(bounds):
            runs.append(slice(begin, end))

        return runs

    def _write_runs(self, table: EmbeddingTable, ids: Ids) -> list[slice]:
        """One run if the order of ids decides: of equal ones, or about those that a filter sees."""
        if ids.is_distinct and table.admission is None:
            return self._runs(len(ids))

        return [slice(0, len(ids))]

    def _do_all(self, calls: Sequence[Callable[[], object]]) -> None:
        """At once as far as there are threads. An error is raised after all of them have ended."""
        if self._threads is None or len(calls) < 2:
            for call in calls:
                call()
            return

        under_way = [self._threads.submit(call) for call in calls]
        errors = [each.exception() for each in under_way]
        for error in errors:
            if error is not None:
                raise error

    def _table(self, name: str) -> EmbeddingTable:
        if name not in self._tables:
            raise UnknownTable(f"no table {name!r}; there are {sorted(self._tables)}")

        return self._tables[name]

    def _variable(self, name: str) -> Variable:
        if name not in self._variables:
            raise UnknownVariable(f"no variable {name!r}; there are {sorted(self._variables)}")

        return self._variables[name]
