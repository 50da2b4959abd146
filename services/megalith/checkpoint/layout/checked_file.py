"""A file whose blocks get checksums while it is written, and which comes to disk meanwhile.

Reading a file again for its checksums takes as long as half of its writing, and a disk that is left
alone until the end makes everybody wait then.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from megalith.checkpoint.layout.blocks import Block
from megalith.checkpoint.layout.crc import crc32

_SYNC_BYTES = 32 << 20  # written since the disk was last told to


class CheckedFile:
    """A context in which the file is written by one thread. After it, the file is on disk.

    `head_size` is the length of what Arrow writes before the first record batch, which it does when
    it gets that one; `head` is that block.
    """

    def __init__(self, path: Path, head_size: int) -> None:
        self._path = path
        self._head_size = head_size
        self.head: Block | None = None
        self._crc32 = 0
        self._block_begin = 0
        self._synced = 0
        self._syncing: Future[None] | None = None
        self.size = 0

    def __enter__(self) -> Self:
        self._file = open(self._path, "wb")
        self._disk = ThreadPoolExecutor(1, "sync")
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            with self._disk, self._file:
                if kind is None:
                    self._finish()
        finally:
            self._syncing = None

    def _finish(self) -> None:
        self._file.flush()
        if self._syncing is not None:
            self._syncing.result()  # an error of the disk is said once, to whoever asked first

        os.fsync(self._file.fileno())

    def end_block(self, first: int = 0, last: int = -1, rows: int = 0) -> Block:
        """What was written since the last block: so many rows of the buckets first..last."""
        size = self.size - self._block_begin
        block = Block(first, last, rows, self._block_begin, size, self._crc32)
        self._block_begin = self.size
        self._crc32 = 0
        return block

    # ------------------------------------------------------------------ as Arrow uses a file

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        count = self._file.write(data)
        self._crc32 = crc32(data, self._crc32)
        self.size += count
        if self.size == self._head_size:
            self.head = self.end_block()

        self._sync_meanwhile()
        return count

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Arrow closes what it has written to; the file is closed at the end of the context."""

    def _sync_meanwhile(self) -> None:
        if self.size - self._synced < _SYNC_BYTES:
            return

        if self._syncing is not None:
            if not self._syncing.done():
                return

            self._syncing.result()

        self._synced = self.size
        self._syncing = self._disk.submit(os.fdatasync, self._file.fileno())
