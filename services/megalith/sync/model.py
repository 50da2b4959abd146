"""The share of a model that one rank holds, and how ranks read and teach each other's shares.

A step on rank 0 of 2, whose batch has the ids 1, 2, 3, of which rank 1 owns 3:

    ids     rank 0 asks rank 1 for the row of 3, and is asked for the rows that rank 1 needs
    rows    each answers; every rank has the rows of its batch
    grads   each sends the gradients where the rows came from; the owner adds them up, and takes
            one step of the optimizer for each id
    dense   the gradients of variables are averaged, and every rank takes the same step
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from megalith.checkpoint.directory import increments
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.storage.location import Location
from megalith.client import Ids
from megalith.client._ids import Partition
from megalith.collective.means import mean_gradients
from megalith.collective.ranks import Ranks
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import CheckpointDamaged, InternalError, InvalidSetting
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.local.model import LocalModel
from megalith.wire.reports import RestoreReport
from megalith.wire.routing import NUM_BUCKETS, Routing, even_owners
from megalith.worker.task import IdsByTable, Read, RowsByTable, Variables

_DIGEST = 32  # bytes of SHA-256


@dataclass(frozen=True, slots=True)
class _Asked:
    """The ids of one table in the step under way.

    `ids` are those of this rank's batch, and `partition` has them by owner. `owned` are those that
    the ranks have asked this one for, behind each other; those of rank r are
    `owned[bounds[r]:bounds[r + 1]]`.
    """

    ids: Ids
    partition: Partition
    owned: I64
    bounds: I64

    def of_rank(self, rank: int) -> slice:
        return slice(int(self.bounds[rank]), int(self.bounds[rank + 1]))

    @property
    def owned_by(self) -> list[slice]:
        """The ids of this rank's batch that each rank owns."""
        bounds = self.partition.bounds.tolist()
        return [slice(begin, end) for begin, end in itertools.pairwise(bounds)]


class RankModel(LocalModel):
    """Rows whose buckets this rank owns, and a copy of all variables; a `ShardHolder` of both.

    `read`, `push` and `evaluated` are calls that all ranks make together.
    """

    def __init__(self, ranks: Ranks, num_threads: int = 1) -> None:
        if ranks.count > NUM_BUCKETS:
            raise InvalidSetting(f"{ranks.count} ranks: there are {NUM_BUCKETS} buckets to own")

        super().__init__(num_threads)
        self._ranks = ranks
        self._owners = even_owners(ranks.count)
        self._routing = Routing(1, ("",) * ranks.count, self._owners)
        self._asked: dict[str, _Asked] = {}

    def restore(self, directory: Location, *, over_budget: bool = False) -> RestoreReport:
        """Take the rows of own buckets and all variables, or raise.

        CheckpointDamaged unless the ranks together have all rows of the checkpoint.
        """
        index = self._ranks.index
        report = restore_shard(
            self, directory, self._owners, index, over_budget=over_budget, all_variables=True
        )
        mine = np.array([report.rows + report.expired], np.int64)
        held = int(self._ranks.gather(mine).sum())
        saved = increments.read_chain(directory).last.rows
        if held != saved:
            raise CheckpointDamaged(
                f"{directory} has {saved} rows, and the ranks have found {held} of them"
            )

        return report

    def read(self, ids: IdsByTable, variables: Sequence[str]) -> tuple[RowsByTable, Variables]:
        """The rows of these ids, whoever owns them, and the variables."""
        asked = self._exchange_ids(ids)
        owned_ids = {table: each.owned for table, each in asked.items()}
        owned, values = super().read(owned_ids, variables)
        self._asked = asked

        parts = [self._rows_for(rank, owned) for rank in range(self._ranks.count)]
        received = self._ranks.exchange(parts)

        pieces_by_table: dict[str, list[F32]] = {table: [] for table in asked}
        for rank, flat in enumerate(received):
            place = 0
            for table, each in asked.items():
                dim = self._table(table).layout.dim
                part = each.owned_by[rank]
                num_rows = part.stop - part.start
                end = place + num_rows * dim

                piece = flat[place:end].reshape(-1, dim)
                pieces_by_table[table].append(piece)
                place = end

        rows = {}
        for table in ids:
            distinct = np.concatenate(pieces_by_table[table])
            rows[table] = asked[table].partition.spread(distinct)

        return rows, values

    def push(
        self,
        gradients: Mapping[str, tuple[Ids, F32]],
        variable_gradients: Variables,
        *,
        req_time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Apply the gradients of all ranks.

        Gradients of a row are added up, and of a variable averaged over the ranks that have one.
        The owners of rows know the ids of the last read; any others are sent to them.
        """
        self._check(gradients, variable_gradients, step)
        has_table = [table in gradients for table in self._asked]
        has_other_ids = any(
            ids is not self._asked[table].ids for table, (ids, _) in gradients.items()
        )
        mine = np.array([req_time_s, has_other_ids, *has_table], np.int64)
        said = self._ranks.gather(mine)

        newest_s = int(said[:, 0].max())
        if said[:, 1].any():
            self._asked = self._exchange_ids({table: ids for table, (ids, _) in gradients.items()})

        taught = dict(zip(self._asked, said[:, 2:].T, strict=True))
        merged = self._exchange_gradients(gradients, taught)

        shapes = {}
        for name in sorted(self._variables):
            shapes[name] = self._variables[name].config.initial.shape

        means = mean_gradients(self._ranks, variable_gradients, shapes)
        self._apply(merged, means, req_time_s=newest_s, step=step)

    def evaluated(self, evaluate: Callable[[Read], dict[str, float]]) -> dict[str, float]:
        """What rank 0 says of the whole model; the others answer its reads, and say nothing."""
        is_more = np.ones(1, np.int64)
        is_over = np.zeros(1, np.int64)

        def read(ids: IdsByTable, variables: Sequence[str]) -> tuple[RowsByTable, Variables]:
            self._ranks.gather(is_more)
            return self.read(ids, variables)

        if self._ranks.is_first:
            figures = evaluate(read)
            self._ranks.gather(is_over)
            return figures

        while self._ranks.gather(is_over)[0].item():
            self.read({}, ())

        return {}

    def check_copies(self) -> None:
        """InternalError unless the variables of all ranks are the same, bit by bit."""
        digest = hashlib.sha256()
        for variable in super().variables():
            value, state = variable.dump()
            for array in (value, *state.values()):
                content = np.ascontiguousarray(array)
                digest.update(content.tobytes())

        mine = np.frombuffer(digest.digest(), np.uint8)
        digests = self._ranks.gather(mine)
        is_other = (digests != digests[0]).any(axis=1)
        differing = np.flatnonzero(is_other).tolist()

        if differing:
            raise InternalError(
                f"the variables of ranks {differing} are not those of rank 0, so there is no model "
                "to save"
            )

    def rows_by_table(self) -> dict[str, int]:
        """Rows of all ranks together."""
        names = sorted(self._tables)
        sizes = [len(self._tables[name]) for name in names]
        mine = np.array(sizes, np.int64)
        sums = self._ranks.gather(mine).sum(0)

        return dict(zip(names, sums.tolist(), strict=True))

    # ------------------------------------------------------------------ as a ShardHolder

    def variables(self) -> list[Variable]:
        """What a ps of this index would hold: a checkpoint has each variable once.

        Large ones in parts, because a ps that restores reads no file but its own if it can.
        """
        copies = [variable_files.whole(each) for each in super().variables()]
        return variable_files.owned(copies, self._owners, self._ranks.index)

    def buckets(self) -> Bools:
        return np.asarray(self._owners == self._ranks.index)

    # ------------------------------------------------------------------ inside

    def _exchange_ids(self, ids: IdsByTable) -> dict[str, _Asked]:
        """Ask each rank for the rows that it owns; what the ranks ask each other, by table."""
        wanted: dict[str, Ids] = {}
        partitions = {}
        for table in sorted(self._tables):
            given = ids.get(table, ())
            if not isinstance(given, Ids):
                given = Ids(np.asarray(given, np.int64))

            wanted[table] = given
            partitions[table] = given.partition(self._routing)

        for table in ids:
            self._table(table)  # one that exists

        messages = [_ids_for(rank, partitions) for rank in range(self._ranks.count)]
        received = self._ranks.exchange(messages)

        num_tables = len(partitions)
        counts = [message[:num_tables] for message in received]
        pieces = []
        for message, of_tables in zip(received, counts, strict=True):
            split = _split(message[num_tables:], of_tables)
            pieces.append(list(split))

        asked = {}
        counts_by_table = np.array(counts).T
        for number, (table, partition) in enumerate(partitions.items()):
            owned = np.concatenate([of_rank[number] for of_rank in pieces])
            ends = np.cumsum(counts_by_table[number])
            bounds = np.concatenate([[0], ends])
            asked[table] = _Asked(wanted[table], partition, owned, bounds)

        return asked

    def _rows_for(self, rank: int, owned: RowsByTable) -> F32:
        """What a rank has asked for, all tables behind each other."""
        parts = [np.zeros(0, np.float32)]
        for table, each in self._asked.items():
            rows = owned[table][each.of_rank(rank)]
            parts.append(rows.reshape(-1))

        return np.concatenate(parts)

    def _check(
        self, gradients: Mapping[str, tuple[Ids, F32]], variable_gradients: Variables, step: int
    ) -> None:
        """Raise what would be refused, before another rank has any of it."""
        for table, (ids, grads) in gradients.items():
            self._table(table).check_gradients(
                ids.values, grads, None, step, dedup=not ids.is_distinct
            )

        for name, gradient in variable_gradients.items():
            self._variable(name).check(UpdateKind.GRADIENT, gradient, step)

    def _exchange_gradients(
        self, gradients: Mapping[str, tuple[Ids, F32]], taught: Mapping[str, I64]
    ) -> dict[str, tuple[Ids, F32]]:
        """Gradients of own rows, from all ranks. The table adds up those of equal ids."""
        summed = {}
        for table, (_, grads) in gradients.items():
            rows = np.ascontiguousarray(grads, np.float32)
            dim = self._table(table).layout.dim
            summed[table] = self._asked[table].partition.summed(rows, dim)

        messages = [self._gradients_for(rank, summed) for rank in range(self._ranks.count)]
        received = self._ranks.exchange(messages)

        places = [0] * self._ranks.count  # up to where the message of each rank is read
        merged = {}
        for table, each in self._asked.items():
            # A dc segment takes the weights that were read beside the gradients.
            width = self._table(table).layout.gradient_width
            ids: list[I64] = []
            received_grads: list[F32] = []

            for rank in np.flatnonzero(taught[table]).tolist():
                of_rank = each.owned[each.of_rank(rank)]
                begin = places[rank]
                places[rank] += of_rank.size * width
                ids.append(of_rank)
                received_grads.append(received[rank][begin : places[rank]].reshape(-1, width))

            if ids:
                all_ids = Ids(np.concatenate(ids))
                merged[table] = (all_ids, np.concatenate(received_grads))

        return merged

    def _gradients_for(self, rank: int, summed: RowsByTable) -> F32:
        """Those of rows that a rank owns, all tables behind each other."""
        parts = [np.zeros(0, np.float32)]
        for table, each in self._asked.items():
            if table in summed:
                rows = summed[table][each.owned_by[rank]]
                parts.append(rows.reshape(-1))

        return np.concatenate(parts)


def _ids_for(rank: int, partitions: Mapping[str, Partition]) -> I64:
    """How many ids of each table a rank is asked for, and then the ids."""
    parts = []
    for partition in partitions.values():
        begin = partition.bounds[rank]
        end = partition.bounds[rank + 1]
        parts.append(partition.ids[begin:end])

    counts = np.array([part.size for part in parts], np.int64)
    return np.concatenate([counts, *parts])


def _split(values: I64, sizes: I64) -> Iterator[I64]:
    """Pieces of these sizes, in order."""
    bounds = [0, *np.cumsum(sizes).tolist()]
    for begin, end in itertools.pairwise(bounds):
        yield values[begin:end]
