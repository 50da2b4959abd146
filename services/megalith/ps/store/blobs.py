"""What programs store beside the rows: bytes by name, such as the state of a torch model."""

import threading
from collections.abc import Mapping

from megalith.errors import LimitExceeded, UnknownBlob, some_of
from megalith.schema.blobs import check_blob_name

DEFAULT_MAX_BLOB_BYTES = 1 << 30


class Blobs:
    """The blobs of one ps.

    To put one is an assignment: a repeated put changes nothing, and of two writers the last one
    counts. `_lock` guards which there are, the sum of their bytes and the number of changes. The
    bytes never change, so who has got them needs no copy.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds the bytes of all blobs together."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}
        self._nbytes = 0
        self._changes = 0

    def put(self, name: str, data: bytes) -> None:
        """Store it in place of what the name had; LimitExceeded if there is no room for it.

        After a restore there may be more than the bound: then a blob may still become smaller.
        """
        check_blob_name(name)
        with self._lock:
            before = len(self._blobs.get(name, b""))
            total = self._nbytes - before + len(data)

            if total > self._max_bytes and len(data) > before:
                raise LimitExceeded(
                    f"blob {name!r} of {len(data)} bytes would make it {total} bytes of blobs on "
                    f"this ps, above its --max-blob-bytes={self._max_bytes}; drop others with "
                    "drop_blob, or raise that setting"
                )

            self._blobs[name] = data
            self._nbytes = total
            self._changes += 1

    def get(self, name: str) -> bytes:
        with self._lock:
            if name not in self._blobs:
                raise UnknownBlob(
                    f"there is no blob {name!r}; the ps that would have it has "
                    f"{some_of(self._blobs)}"
                )

            return self._blobs[name]

    def drop(self, name: str) -> int | None:
        """How many bytes it had; None if there is none of that name."""
        with self._lock:
            data = self._blobs.pop(name, None)
            if data is None:
                return None

            self._nbytes -= len(data)
            self._changes += 1
            return len(data)

    def all(self) -> dict[str, bytes]:
        """By name, as of now."""
        with self._lock:
            return {name: self._blobs[name] for name in sorted(self._blobs)}

    def adopt(self, blobs: Mapping[str, bytes]) -> None:
        """Take what was restored, also beyond the bound: nothing of a checkpoint is left out."""
        with self._lock:
            self._blobs = dict(blobs)
            self._nbytes = sum(len(data) for data in blobs.values())

    @property
    def changes(self) -> int:
        """Puts and drops so far."""
        with self._lock:
            return self._changes

    @property
    def nbytes(self) -> int:
        """Of their data."""
        with self._lock:
            return self._nbytes
