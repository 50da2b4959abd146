"""Where this ps stands in the chain of a checkpoint and its increments."""

import threading
from typing import NamedTuple

from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.saving.save import Sets
from megalith.errors import ChangesForgotten

_READER = "increments"  # of the delta logs
_MOST_POSITIONS = 4  # saves that may be under way or fail between two increments


class Position(NamedTuple):
    """A full save by its id (number 0), or an increment of it."""

    base: str
    number: int


class ChainPositions:
    """The saves that an increment may go on from, and the sets of the delta logs that are in each.

    A ps does not hear whether a save of all servers has become complete. So it remembers several,
    and the order for the next increment says which one counts. `_lock` guards them.
    """

    def __init__(self, holder: ShardHolder) -> None:
        self._holder = holder
        self._lock = threading.Lock()
        self._sets_by_position: dict[Position, Sets] = {}

    def restored(self, base: str, number: int) -> None:
        """Everything up to there has just been restored, and nothing has changed since."""
        begins: dict[str, int] = {}
        for table in self._holder.tables():
            begins[table.config.name] = table.changes.begin

        self.add(Position(base, number), begins)

    def sets_at(self, base: str, number: int) -> Sets:
        """What the files up to that increment have; ChangesForgotten if this ps does not know it.

        Whoever asks goes on from there, so older saves are forgotten.
        """
        wanted = Position(base, number)
        with self._lock:
            if wanted not in self._sets_by_position:
                raise ChangesForgotten(
                    f"what changed since increment {number} of save {base} is not known here; "
                    "a full save is needed"
                )

            sets = self._sets_by_position[wanted]
            self._sets_by_position = {wanted: sets}

        tables = self._holder.tables()
        dropped = sets.keys() - {table.config.name for table in tables}
        if dropped:
            raise ChangesForgotten(
                f"tables {sorted(dropped)} were dropped since increment {number} of save {base}; "
                "a full save is needed"
            )

        for table in tables:
            if table.config.name in sets:
                table.changes.acknowledge(_READER, sets[table.config.name])

        return sets

    def add(self, position: Position, sets: Sets) -> None:
        """A save has everything up to these sets in its files."""
        with self._lock:
            self._sets_by_position[position] = sets
            while len(self._sets_by_position) > _MOST_POSITIONS:
                oldest = next(iter(self._sets_by_position))
                del self._sets_by_position[oldest]
