"""Carrying out an order to save: everything, what changed, or the variables alone."""

from pathlib import Path

from megalith.checkpoint.directory import increments
from megalith.checkpoint.pace import DEFAULT_TIMEOUT_S, Pace
from megalith.checkpoint.saving import increment, save
from megalith.checkpoint.saving.save import SavedShard
from megalith.checkpoint.storage.location import Location, locate
from megalith.errors import SaveFailed
from megalith.protos import coordination_pb2
from megalith.ps.store.chain import ChainPositions, Position
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.store import Store


class ShardSaving:
    """Writes files, and remembers which changes are in them, for the next increment.

    A controller has one save at a time: with its next order it has given the one before it up. That
    one ends then, and does not write beside the next, and the next, on a disk that is too slow.
    """

    def __init__(self, store: Store, known: KnownSaves) -> None:
        self._store = store
        self._known = known
        self._positions = ChainPositions(store)
        self._newest = ""  # id of the save that was ordered last

    def restored(self, checkpoint: Location, num_increments: int) -> None:
        """Everything of that checkpoint and its increments is here."""
        chain = increments.read_chain(checkpoint)
        if not chain.base.save_id:
            return  # of an early version

        self._positions.restored(chain.base.save_id, num_increments)
        _, newest = chain.folders[num_increments]
        begins = {table.config.name: table.changes.begin for table in self._store.tables()}
        self._known.add(newest.save_id, begins)

    def write(self, order: coordination_pb2.SaveShard, index: int, num_ps: int) -> SavedShard:
        """ChangesForgotten if an increment is asked for, and only a full save has all changes.

        SaveFailed once the controller has given it up.
        """
        self._newest = order.save_id
        if order.HasField("increment"):
            return self._write_increment(order, index, num_ps)
        if order.dense_only:
            directory = locate(order.directory)
            return save.save_shard(
                self._store, directory, order.save_id, index, num_ps, dense_only=True
            )

        # Before the first row is read: what changes from now on is part of the next increment
        sets = increment.seal_all(self._store)
        # And replicas that follow must not let go what changes while the files are written
        self._known.add(order.save_id, sets)
        pace = Pace(
            lambda: self._store.pushes,
            order.timeout_s or DEFAULT_TIMEOUT_S,
            check=lambda: self._check_wanted(order),
        )
        written = save.save_shard(
            self._store,
            locate(order.directory),
            order.save_id,
            index,
            num_ps,
            sets,
            pace,
        )
        self._positions.add(Position(order.save_id, 0), sets)
        return written

    def _check_wanted(self, order: coordination_pb2.SaveShard) -> None:
        if self._newest != order.save_id:
            raise SaveFailed("the save was given up: the controller has ordered another one")

        directory = locate(order.directory)
        if isinstance(directory, Path) and not directory.exists():
            raise SaveFailed(f"the save was given up: {directory} is gone")

    def _write_increment(
        self, order: coordination_pb2.SaveShard, index: int, num_ps: int
    ) -> SavedShard:
        base = order.increment.base
        number = order.increment.number
        written = increment.save_increment(
            self._store,
            self._positions.sets_at(base, number - 1),
            locate(order.directory),
            order.save_id,
            index,
            num_ps,
            # One that was given up has another cut than the one that has its number by now
            check=lambda: self._check_wanted(order),
        )
        self._positions.add(Position(base, number), written.sets)
        self._known.add(order.save_id, written.sets)
        return written.shard
