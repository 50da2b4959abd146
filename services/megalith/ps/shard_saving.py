"""Carrying out an order to save: everything that this ps holds, or what changed."""

from pathlib import Path

from megalith.checkpoint import increment, manifest, save
from megalith.checkpoint.save import SavedShard
from megalith.protos import coordination_pb2
from megalith.ps.store.chain import ChainPositions, Position
from megalith.ps.store.store import Store


class ShardSaving:
    """Writes files, and remembers which changes are in them, for the next increment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._positions = ChainPositions(store)

    def restored(self, checkpoint: Path, num_increments: int) -> None:
        """Everything of that checkpoint and its increments is here."""
        base = manifest.read(checkpoint).save_id
        if base:
            self._positions.restored(base, num_increments)

    def write(self, order: coordination_pb2.SaveShard, index: int, num_ps: int) -> SavedShard:
        """ChangesForgotten if an increment is asked for, and only a full save has all changes."""
        if order.HasField("increment"):
            return self._write_increment(order, index, num_ps)

        # Before the first row is read: what changes from now on is part of the next increment
        sets = increment.seal_all(self._store)
        written = save.save_shard(self._store, Path(order.directory), order.save_id, index, num_ps)
        self._positions.add(Position(order.save_id, 0), sets)
        return written

    def _write_increment(
        self, order: coordination_pb2.SaveShard, index: int, num_ps: int
    ) -> SavedShard:
        base = order.increment.base
        number = order.increment.number
        written = increment.save_increment(
            self._store,
            self._positions.sets_at(base, number - 1),
            Path(order.directory),
            order.save_id,
            index,
            num_ps,
        )
        self._positions.add(Position(base, number), written.sets)
        return written.shard
