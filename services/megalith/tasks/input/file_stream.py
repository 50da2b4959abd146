"""Files one after the other, and new ones as they come: what `--follow` reads.

Each worker reads its own blocks of every file, which the hash of the path decides. So workers agree
without asking each other, whenever each of them finds a file.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from megalith.errors import BadData
from megalith.runtime.counting import counted
from megalith.tasks.input.blocks import index_file, is_gone, read_block
from megalith.tasks.input.files import named_now
from megalith.tasks.input.index import BlockRef, joined_tables
from megalith.tasks.input.read_files import ReadFiles, hash_of, read_by_all
from megalith.tasks.input.schemas import check_alike, with_values
from megalith.tasks.input.windows import DatedFile, Window
from megalith.wire.reports import InputCounts
from megalith.worker.input import Input, InputBatch

logger = logging.getLogger(__name__)

_POLL_S = 2.0  # between two looks for new files


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How files are followed.

    The input ends when no new file has come for `idle_s`; 0 = it never ends. A file that was found,
    or of which a part was read, and that is gone when its turn comes, is an error; with
    `is_skipping` it is counted and left out.
    """

    patterns: Sequence[str]
    window: Window
    batch_size: int
    idle_s: float = 0.0
    poll_s: float = _POLL_S
    text_columns: Sequence[str] = ()
    header: Sequence[str] = ()  # of text files without a header line
    is_skipping: bool = False


class FileStream(Input[pa.Table]):
    """The rows of one worker as tables with the columns of `schema`, in the order of time and name.

    A file should appear under its name when it is whole: write it under another name, and rename
    it. Files whose names begin with a dot or an underscore are passed over. For one thread, but
    `stop` may be called by another.
    """

    def __init__(
        self, settings: StreamSettings, schema: pa.Schema, *, index: int = 0, count: int = 1
    ) -> None:
        self._settings = settings
        self._schema = schema
        self._index = index
        self._count = count
        self._stopped = threading.Event()

        self._read = ReadFiles()
        self._found: deque[DatedFile] = deque()  # not read yet
        self._known: set[str] = set()  # files that were there at the last look
        self._has_begun = False
        self._gathered: list[pa.Table] = []
        self._blocks: dict[BlockRef, None] = {}  # of the rows that are gathered, in their order
        self.num_late = 0  # files of closed hours with rows of this worker
        self.num_gone = 0  # files that went before they were read to their end

    def batches(self, cursor: bytes) -> Iterator[InputBatch[pa.Table]]:
        self._read = ReadFiles.parse(cursor)
        self._found.clear()
        self._gathered = []
        self._blocks = {}
        self._note_read()
        self._go_on()
        idle_since = time.monotonic()
        while not self._stopped.is_set():
            if not self._found:
                self._look()
            if self._found:
                yield from self._batches_of(self._found.popleft())
                idle_since = time.monotonic()
                continue

            if self._gathered:
                yield self._batch()
            idle_s = self._settings.idle_s
            if idle_s and time.monotonic() - idle_since >= idle_s:
                return

            self._stopped.wait(self._settings.poll_s)

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        """Another number of workers reads a file again that not all had read to its end."""
        if len(saved) == count:
            return saved[index]

        read = [ReadFiles.parse(cursor) for cursor in saved]
        logger.warning(
            "the files were shared by %d workers, and are by %d now: those that not all of them "
            "had read are read again from their start",
            len(saved),
            count,
        )
        for path in sorted({each.path for each in read if each.path}):
            if not os.path.exists(path):
                self._miss(path, "not all workers had read it", is_counted=index == 0)

        return read_by_all(read).encoded()

    def left_out(self) -> InputCounts:
        return InputCounts(late_files=self.num_late + self.num_gone)

    def stop(self) -> None:
        self._stopped.set()

    def _note_read(self) -> None:
        """At the beginning the files of closed hours count as read; later ones come too late."""
        if self._has_begun:
            return

        self._has_begun = True
        files = named_now(self._settings.patterns, self._settings.window)
        read = {file.path for file in files if self._read.has(file.hour, file.path)}
        self._known = read | {self._read.path}

    def _go_on(self) -> None:
        """The file of which a part is read comes first, whatever has come meanwhile.

        A cursor has one such file: the next one would take its place. The others are found before
        it is read, so that their hours stay open.
        """
        path = self._read.path
        if not path:
            return

        if not os.path.exists(path):
            self._miss(path, f"{self._read.rows:,} of its rows were read before")
            return

        files = named_now(self._settings.patterns, self._settings.window)
        begun = [file for file in files if file.path == path]
        if not begun:
            logger.warning("not read on: %s is no longer among the files of the input", path)

        self._look()
        others = [file for file in self._found if file.path != path]
        self._found = deque([*begun, *others])

    def _miss(self, path: str, why: str, is_counted: bool = True) -> None:
        """A file is gone whose other rows are not read: BadData, or it is counted."""
        lost = f"{path}: the file is gone, and {why}"
        if not self._settings.is_skipping:
            raise BadData(f"{lost}; --on-lost-data skip goes on without the others")

        if is_counted:
            self.num_gone += 1
            logger.warning("left out: %s", lost)

    def _look(self) -> None:
        """Find the files that are not read."""
        files = named_now(self._settings.patterns, self._settings.window)
        late = []

        for file in files:
            if not self._read.has(file.hour, file.path):
                self._found.append(file)
            elif file.hour <= self._read.closed and file.path not in self._known:
                late.append(file.path)

        left_out = [path for path in late if self._has_rows(path)]
        if left_out:
            self.num_late += len(left_out)
            logger.warning(
                "left out: files=%d came too late, such as %s", len(left_out), left_out[0]
            )

        self._known = {file.path for file in files}

    def _has_rows(self, path: str) -> bool:
        """Whether rows of the file are of this worker: others may have read theirs in time."""
        try:
            num_rows = index_file(path, self._settings.header).rows
        except BadData:  # one worker counts a file of which nobody knows the rows
            return self._is_mine(path, 0)

        return any(rows and self._is_mine(path, block) for block, rows in enumerate(num_rows))

    def _batches_of(self, file: DatedFile) -> Iterator[InputBatch[pa.Table]]:
        if not os.path.exists(file.path):
            self._miss(file.path, "it was found before, and not read")
            return

        try:
            yield from self._rows_of(file)
        except BadData as error:
            if not self._settings.is_skipping or not is_gone(error):
                raise

            rows = self._read.rows_of(file.path)
            self._miss(file.path, f"{rows:,} of its rows were read before")
            self._note_end(file)

    def _rows_of(self, file: DatedFile) -> Iterator[InputBatch[pa.Table]]:
        indexed = index_file(file.path, self._settings.header)
        text_columns = self._settings.text_columns
        check_alike(indexed, self._schema, text_columns, "the first file")
        self._schema = with_values(self._schema, [indexed], text_columns)
        already = self._read.rows_of(file.path)

        blocks = range(len(indexed.rows))
        mine = [block for block in blocks if self._is_mine(file.path, block)]
        total = sum(indexed.rows[block] for block in mine)

        if already > total:
            rows = counted(total, "row")
            raise BadData(
                f"{file.path} has {rows} for worker-{self._index}, but {already:,} were "
                "read before; a file must not change after it has appeared under its name"
            )

        before = 0
        for block in mine:
            num_rows = indexed.rows[block]
            start = max(0, already - before)
            if start < num_rows:
                table = read_block(indexed, block, self._schema)
                yield from self._gather(file, table, BlockRef(indexed, block), start, before, total)

            before += num_rows

        if already == total:  # there was nothing to gather
            self._note_end(file)

    def _note_end(self, file: DatedFile) -> None:
        """The file is read. Hours of files that wait stay open, or a restart passes them over."""
        first_waiting = self._found[0].hour if self._found else None
        self._read.add(file.hour, file.path, first_waiting)

    def _gather(
        self, file: DatedFile, table: pa.Table, block: BlockRef, start: int, before: int, total: int
    ) -> Iterator[InputBatch[pa.Table]]:
        """Add the rows from `start` on.

        `before` are those of earlier blocks of the file, and `total` those of all blocks.
        """
        while start < table.num_rows:
            held = sum(each.num_rows for each in self._gathered)
            wanted = self._settings.batch_size - held
            piece = table.slice(start, wanted)
            self._gathered.append(piece)

            self._blocks[block] = None
            start += piece.num_rows

            self._read.path = file.path
            self._read.rows = before + start

            if self._read.rows == total:
                self._note_end(file)

            if piece.num_rows == wanted:
                yield self._batch()

    def _batch(self) -> InputBatch[pa.Table]:
        blocks = tuple(self._blocks)
        table = joined_tables(self._gathered, blocks)

        self._gathered = []
        self._blocks = {}

        cursor = self._read.encoded()
        return InputBatch(table, cursor, 0, blocks[0].where, blocks)

    def _is_mine(self, path: str, block: int) -> bool:
        first = int(hash_of(path), 16)
        owner = (first + block) % self._count
        return owner == self._index
