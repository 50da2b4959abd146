"""Which rows batch n has, without reading any of them.

Blocks are dealt to as many *tracks* as there are workers. Worker w of W trains the batches w,
w + W, w + 2W and so on, and batch n is of track n modulo W, so a worker reads the blocks of its own
track and no others. Where a track has no batches left, its numbers go to the other tracks. For
example, tracks of 3 and 1 batches are numbered

    track 0:  0  2  3
    track 1:  1

Every row is in one batch of a pass. A track's last batch may be smaller than the others.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows [start, stop) of a block, which is in a track."""

    track: int
    block: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Pass:
    """The blocks of a track in the order of one epoch, and after how many rows each one ends."""

    epoch: int
    blocks: I64
    ends: I64


class Numbering:
    """The batches of a data set by number, epoch after epoch.

    With a `shuffle_seed` a track's blocks come in another order in each epoch; without one they
    come in the order of the files. Not for several threads.
    """

    def __init__(
        self,
        rows: Sequence[int],
        batch_size: int,
        num_tracks: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        self._rows = np.array(rows, np.int64)
        self._batch_size = batch_size
        self._shuffle_seed = shuffle_seed

        tracks: list[list[int]] = [[] for _ in range(num_tracks)]
        held = [0] * num_tracks
        for block, count in enumerate(rows):
            least = min(held)
            track = held.index(least)  # the emptiest, so that tracks end together
            tracks[track].append(block)
            held[track] += count

        self._tracks = []
        self._num_batches = []

        for blocks, count in zip(tracks, held, strict=True):
            self._tracks.append(np.array(blocks, np.int64))
            self._num_batches.append(math.ceil(count / batch_size))

        self._passes: dict[int, _Pass] = {}  # by track: the last one asked for
        self.batches_per_epoch = sum(self._num_batches)

    def batch(self, number: int) -> list[Stretch]:
        """The rows of batch `number`; its epoch is `number // batches_per_epoch`."""
        epoch, in_epoch = divmod(number, self.batches_per_epoch)
        track, in_track = self._located(in_epoch)
        blocks = self._pass(track, epoch)

        first = in_track * self._batch_size
        last = min(first + self._batch_size, int(blocks.ends[-1]))

        stretches = []
        index = int(np.searchsorted(blocks.ends, first, side="right"))
        while first < last:
            block = int(blocks.blocks[index])
            end = int(blocks.ends[index])
            begin = end - int(self._rows[block])

            stop = min(last, end)

            stretch = Stretch(track, block, first - begin, stop - begin)
            stretches.append(stretch)

            first = stop
            index += 1

        return stretches

    def _located(self, number: int) -> tuple[int, int]:
        """(track, batch of that track): the first batches of all tracks come first.

        A round has one batch of each track that has any left.
        """
        rounds = range(max(self._num_batches) + 1)
        position = bisect.bisect_right(rounds, number, key=self._before) - 1
        in_round = number - self._before(position)

        left = []
        for track, count in enumerate(self._num_batches):
            if count > position:
                left.append(track)

        return left[in_round], position

    def _before(self, rounds: int) -> int:
        """The batches of that many rounds."""
        return sum(min(count, rounds) for count in self._num_batches)

    def _pass(self, track: int, epoch: int) -> _Pass:
        known = self._passes.get(track)
        if known is not None and known.epoch == epoch:
            return known

        blocks = self._tracks[track]
        if self._shuffle_seed is not None:
            rng = np.random.default_rng([self._shuffle_seed, epoch, track])
            blocks = rng.permutation(blocks)

        found = _Pass(epoch, blocks, np.cumsum(self._rows[blocks]))
        self._passes[track] = found
        return found
