"""Files that are handed out in pieces: the blocks of a data set, or whole files as they come."""

import logging
import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.errors import BadData
from megalith.runtime.counting import counted
from megalith.tasks.input.blocks import IndexedFile, index_file, is_gone, read_block
from megalith.tasks.input.file_stream import StreamSettings
from megalith.tasks.input.files import named_now
from megalith.tasks.input.index import BlockRef, DataIndex, joined_tables
from megalith.tasks.input.schemas import check_alike, with_values
from megalith.wire.pieces import FoundFile, Piece, PieceAnswer, PiecePlan, PieceProgress
from megalith.wire.reports import InputCounts
from megalith.worker.pieced_input import POLL_S, DrawnBatch, PiecedInput

_MOST_AT_ONCE = 64  # pieces; those of a worker that dies wait until its lease is over
_FOUND_AT_ONCE = 1000  # files that one request names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _GatheredRows:
    """Rows of a piece that are read and not drawn."""

    number: int
    table: pa.Table
    block: BlockRef


class PiecedTables(PiecedInput[pa.Table]):
    """Batches of rows, each filled from one piece after the other."""

    def __init__(self, plan: PiecePlan, batch_size: int, most: int, poll_s: float = POLL_S) -> None:
        super().__init__(plan, most, poll_s)
        self._batch_size = batch_size
        self._gathered: list[_GatheredRows] = []
        self._progress: dict[int, PieceProgress] = {}  # after the rows that are gathered

    @abstractmethod
    def _num_rows(self, piece: Piece) -> int:
        """Of the whole piece."""

    @abstractmethod
    def _tables(self, piece: Piece) -> Iterator[tuple[pa.Table, BlockRef]]:
        """The rows after its offset, each table with the block that it is of.

        Fewer than there should be if the others are gone, and left out.
        """

    def _begin(self) -> None:
        self._gathered = []
        self._progress = {}

    def _read(self, piece: Piece) -> Iterator[DrawnBatch[pa.Table]]:
        num_rows = self._num_rows(piece)
        if piece.offset >= num_rows:
            self._nothing_in(piece)
            return

        offset = piece.offset
        for table, block in self._tables(piece):
            start = 0
            while start < table.num_rows:
                is_mine = self._is_mine(piece.number)
                self._leave_lost()
                if not is_mine:
                    return

                missing = self._batch_size - self._num_gathered
                rows = table.slice(start, missing)
                start += rows.num_rows
                offset += rows.num_rows
                is_done = offset == num_rows
                self._gathered.append(_GatheredRows(piece.number, rows, block))
                self._progress[piece.number] = PieceProgress(piece.number, offset, is_done)
                if rows.num_rows == missing:
                    yield self._batch()

        if offset < num_rows:
            self._end_at(piece.number, offset)

    def _end_at(self, number: int, offset: int) -> None:
        """The other rows of the piece are gone: it is done after those that are read."""
        if number in self._progress:
            self._progress[number] = PieceProgress(number, offset, is_done=True)
        else:  # all of them are drawn
            self._nothing_in(Piece(number, offset))

    def _rest(self) -> Iterator[DrawnBatch[pa.Table]]:
        if self._gathered:
            yield self._batch()

    @property
    def _num_gathered(self) -> int:
        return sum(rows.table.num_rows for rows in self._gathered)

    def _batch(self) -> DrawnBatch[pa.Table]:
        tables = [rows.table for rows in self._gathered]
        blocks = tuple(dict.fromkeys(rows.block for rows in self._gathered))
        table = joined_tables(tables, blocks)

        progress = tuple(self._progress.values())
        self._begin()
        return DrawnBatch(table, progress, blocks[0].where, blocks)

    def _leave_lost(self) -> None:
        """Pieces may be another worker's by now: what is read of them is not drawn."""
        lost = self._progress.keys() - self._held.keys()
        if not lost:
            return

        self._gathered = [rows for rows in self._gathered if rows.number not in lost]
        for number in lost:
            del self._progress[number]


class PiecedBlocks(PiecedTables):
    """Each block of a data set is a piece, in each epoch.

    With a `shuffle_seed` the order of blocks, and of the rows within a block, is another one in
    each epoch, decided by the seed; without one it is that of the files.
    """

    def __init__(
        self,
        index: DataIndex,
        schema: pa.Schema,
        *,
        batch_size: int,
        epochs: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        self._blocks = index.blocks
        num_blocks = len(self._blocks)
        of = f"blocks {index.digest} shuffle={shuffle_seed}"
        plan = PiecePlan(of, num_blocks * epochs)

        for_a_batch = math.ceil(batch_size * num_blocks / index.num_rows)
        super().__init__(plan, batch_size, min(_MOST_AT_ONCE, for_a_batch))

        self._schema = schema
        self._shuffle_seed = shuffle_seed

        self._epoch = -1  # of `_order`
        self._order = np.arange(num_blocks)

    def _num_rows(self, piece: Piece) -> int:
        _, block = self._block(piece)
        return block.num_rows

    def _tables(self, piece: Piece) -> Iterator[tuple[pa.Table, BlockRef]]:
        number, block = self._block(piece)
        table = read_block(block.file, block.number, self._schema)
        if self._shuffle_seed is not None:
            rng = np.random.default_rng([self._shuffle_seed, self._epoch, number])

            order = rng.permutation(table.num_rows)
            table = table.take(order)

        left = table.slice(piece.offset)
        yield left, block

    def _block(self, piece: Piece) -> tuple[int, BlockRef]:
        """(number of the block in the data set, the block)."""
        num_blocks = len(self._blocks)
        epoch, position = divmod(piece.number, num_blocks)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._order_of(epoch)

        number = int(self._order[position])
        return number, self._blocks[number]

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        num_blocks = len(self._blocks)
        if self._shuffle_seed is None:
            return np.arange(num_blocks)

        rng = np.random.default_rng([self._shuffle_seed, epoch])
        return rng.permutation(num_blocks)


class PiecedFiles(PiecedTables):
    """Each file is a piece, and new files are as they come: what `--follow` reads.

    A worker that has nothing to read looks for files, and tells the controller of those that it
    finds. Files of hours that are closed come too late. The worker that tells of one first counts
    it in `num_late`.
    """

    def __init__(
        self,
        settings: StreamSettings,
        schema: pa.Schema,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        plan = PiecePlan("files, followed", is_followed=True)
        super().__init__(plan, settings.batch_size, most=1, poll_s=settings.poll_s)
        self._settings = settings
        self._schema = schema

        self._opened: IndexedFile | None = None
        self._told: set[str] = set()  # files that the controller has heard of, or need not
        self._has_looked = False

        self._closed_hour = -1
        self._num_known = 0  # files that workers have found
        self._clock = clock
        self._idle_since = clock()
        self.num_late = 0
        self.num_gone = 0  # files that went before they were read to their end

    def left_out(self) -> InputCounts:
        return InputCounts(late_files=self.num_late + self.num_gone)

    def _ask(self, most: int) -> PieceAnswer | None:
        answer = super()._ask(most)
        if answer is not None and most and not answer.pieces and not answer.is_end:
            self._closed_hour = answer.closed_hour
            answer = self._ask_with_files(most)

        if answer is not None and answer.pieces:
            self._idle_since = self._clock()

        return answer

    def _heard(self, answer: PieceAnswer | None) -> PieceAnswer | None:
        """Files come as long as any worker finds some, whoever gets them."""
        if answer is not None and answer.known_files != self._num_known:
            self._num_known = answer.known_files
            self._idle_since = self._clock()

        return super()._heard(answer)

    def _ask_with_files(self, most: int) -> PieceAnswer | None:
        """Nothing is left of the files that the controller knows: tell it of others."""
        found = self._find()
        idle_s = self._clock() - self._idle_since
        is_idle = not found and 0 < self._settings.idle_s <= idle_s
        answer = self._source.ask(self._plan, most, found, is_idle)
        if answer is not None:
            for file in found:
                self._told.add(file.path)

            self._count_late(answer.late_files)

        return self._heard(answer)

    def _count_late(self, late: Sequence[str]) -> None:
        if late:
            self.num_late += len(late)
            logger.warning("left out: files=%d came too late, such as %s", len(late), late[0])

    def _find(self) -> Sequence[FoundFile]:
        """Files that this worker has not told of, in the order of time and name."""
        found = []
        files = named_now(self._settings.patterns, self._settings.window)
        self._told &= {file.path for file in files}  # bounded by what is there
        for file in files:
            if file.path in self._told:
                continue
            if file.hour > self._closed_hour or self._has_looked:
                found.append(FoundFile(file.path, file.hour))
            else:  # at the first look the files of closed hours count as read
                self._told.add(file.path)

        self._has_looked = True
        return found[:_FOUND_AT_ONCE]

    def _num_rows(self, piece: Piece) -> int:
        if not os.path.exists(piece.name):
            self._miss(piece)
            return 0

        file = index_file(piece.name, self._settings.header)
        text_columns = self._settings.text_columns
        check_alike(file, self._schema, text_columns, "the first file")
        self._schema = with_values(self._schema, [file], text_columns)
        num_rows = sum(file.rows)
        if piece.offset > num_rows:
            rows = counted(num_rows, "row")
            raise BadData(
                f"{piece.name} has {rows}, but {piece.offset:,} were read before; a "
                "file must not change after it has appeared under its name"
            )

        self._opened = file
        return num_rows

    def _miss(self, piece: Piece) -> None:
        """BadData if its file is gone, or it is counted."""
        lost = f"{piece.name}: the file is gone, and {piece.offset:,} of its rows were read before"
        if not self._settings.is_skipping:
            raise BadData(f"{lost}; --on-lost-data skip goes on without the others")

        self.num_gone += 1
        logger.warning("left out: %s", lost)

    def _tables(self, piece: Piece) -> Iterator[tuple[pa.Table, BlockRef]]:
        assert self._opened is not None  # `_num_rows` is asked first
        file = self._opened
        before = 0
        for block, num_rows in enumerate(file.rows):
            start = max(0, piece.offset - before)
            before += num_rows
            if start >= num_rows:
                continue

            try:
                table = read_block(file, block, self._schema)
            except BadData as error:
                if not self._settings.is_skipping or not is_gone(error):
                    raise

                self._miss(replace(piece, offset=before - num_rows))
                return

            yield table.slice(start), BlockRef(file, block)
