"""Which rows batch n has, without reading any of them.

Blocks are dealt to as many *lanes* as there are workers. Worker w of W trains the batches w, w + W,
w + 2W and so on, and batch n is of lane n modulo W, so a worker reads the blocks of its own lane
and no others. Where a lane has no batches left, its numbers go to the other lanes. For example,
lanes of 3 and 1 batches are numbered

    lane 0:  0  2  3
    lane 1:  1

Every row is in one batch of a pass. A lane's last batch may be smaller than the others.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows [start, stop) of a block, which is in a lane."""

    lane: int
    block: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Pass:
    """The blocks of a lane in the order of one epoch, and after how many rows each one ends."""

    epoch: int
    blocks: I64
    ends: I64


class Numbering:
    """The batches of a data set by number, epoch after epoch.

    With a `shuffle_seed` a lane's blocks come in another order in each epoch; without one they come
    in the order of the files. Not for several threads.
    """

    def __init__(
        self,
        rows: Sequence[int],
        batch_size: int,
        num_lanes: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        self._rows = np.array(rows, np.int64)
        self._batch_size = batch_size
        self._shuffle_seed = shuffle_seed
        lanes: list[list[int]] = [[] for _ in range(num_lanes)]
        held = [0] * num_lanes
        for block, count in enumerate(rows):
            lane = held.index(min(held))  # the emptiest, so that lanes end together
            lanes[lane].append(block)
            held[lane] += count

        self._lanes = [np.array(blocks, np.int64) for blocks in lanes]
        self._num_batches = [-(-count // batch_size) for count in held]
        self._passes: dict[int, _Pass] = {}  # by lane: the last one asked for
        self.batches_per_epoch = sum(self._num_batches)

    def batch(self, number: int) -> list[Stretch]:
        """The rows of batch `number`; its epoch is `number // batches_per_epoch`."""
        epoch, in_epoch = divmod(number, self.batches_per_epoch)
        lane, in_lane = self._located(in_epoch)
        blocks = self._pass(lane, epoch)
        first = in_lane * self._batch_size
        last = min(first + self._batch_size, int(blocks.ends[-1]))

        stretches = []
        index = int(np.searchsorted(blocks.ends, first, side="right"))
        while first < last:
            block = int(blocks.blocks[index])
            end = int(blocks.ends[index])
            begin = end - int(self._rows[block])
            stop = min(last, end)
            stretches.append(Stretch(lane, block, first - begin, stop - begin))
            first = stop
            index += 1

        return stretches

    def _located(self, number: int) -> tuple[int, int]:
        """(lane, batch of that lane): the first batches of all lanes come first, then the second.

        A round has one batch of each lane that has any left.
        """
        rounds = range(max(self._num_batches) + 1)
        position = bisect.bisect_right(rounds, number, key=self._before) - 1
        left = [lane for lane, count in enumerate(self._num_batches) if count > position]
        return left[number - self._before(position)], position

    def _before(self, rounds: int) -> int:
        """The batches of that many rounds."""
        return sum(min(count, rounds) for count in self._num_batches)

    def _pass(self, lane: int, epoch: int) -> _Pass:
        known = self._passes.get(lane)
        if known is not None and known.epoch == epoch:
            return known

        blocks = self._lanes[lane]
        if self._shuffle_seed is not None:
            rng = np.random.default_rng([self._shuffle_seed, epoch, lane])
            blocks = rng.permutation(blocks)

        found = _Pass(epoch, blocks, np.cumsum(self._rows[blocks]))
        self._passes[lane] = found
        return found
