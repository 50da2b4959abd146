"""What a rank wants to happen between two steps, and what all ranks do then."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megalith.collective.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one rank wants before the next step.

    `goes_on` is whether it has a batch for another step, or may get one: while it `waits` for its
    input there is no step. `stops` ends training although there may be a batch. `counts` wants to
    know how many rows the tables have.
    """

    goes_on: bool
    waits: bool = False
    stops: bool = False
    saves: bool = False
    counts: bool = False

    def agreed(self, ranks: Ranks) -> "Wishes":
        """What is done: all have to go on, and one is enough for a wait, a stop or a save."""
        mine = np.array(
            [self.goes_on, self.waits, self.stops, self.saves, self.counts],
            np.int64,
        )
        goes_on, waits, stops, saves, counts = ranks.gather(mine).T
        return Wishes(
            bool(goes_on.all()),
            waits=bool(waits.any()),
            stops=bool(stops.any()),
            saves=bool(saves.any()),
            counts=bool(counts.any()),
        )


class Operator:
    """Who else may want something between two steps: a save every so many steps, or none."""

    def __init__(self, first_step: int = 0, save_every_steps: int = 0) -> None:
        self._first_step = first_step
        self._save_every_steps = save_every_steps

    def wants_save(self, step: int) -> bool:
        every = self._save_every_steps
        return every > 0 and step > self._first_step and step % every == 0

    def wants_stop(self) -> bool:
        return False

    def wants_counts(self) -> bool:
        return False

    def counted(self, rows_by_table: Mapping[str, int]) -> None:
        """What was wanted: the rows of all ranks."""

    def has_trained(self, req_time_s: int) -> None:
        """A batch with data of that time is trained."""

    def saved(self) -> None:
        """A checkpoint exists."""
