"""Writing the files of a shard: where they belong, or on this machine first, and then uploaded.

Files of an object store are uploaded while others are still being written. Each goes up in parts,
several at once.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from megalith.checkpoint.storage import files, scratch
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath

_FILES_AT_ONCE = 4


class Staging:
    """Where files are written: `folder`. Nothing has to be uploaded from the target itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def finished(self, names: Iterable[str]) -> None:
        """These files are complete."""


class _UploadingStaging(Staging):
    """Used by one thread."""

    def __init__(self, folder: Path, target: ObjectPath, pool: ThreadPoolExecutor) -> None:
        super().__init__(folder)
        self._target = target
        self._pool = pool
        self._uploads: list[Future[None]] = []

    def finished(self, names: Iterable[str]) -> None:
        for name in names:
            self._uploads.append(self._pool.submit(self._upload, name))

    def _upload(self, name: str) -> None:
        path = self.folder / name
        files.put(path, self._target / name)
        path.unlink()  # its room is needed for the files after it

    def wait(self) -> None:
        """All of them are there; the first error otherwise."""
        for upload in self._uploads:
            upload.result()


@contextmanager
def staging_for(target: Location) -> Iterator[Staging]:
    """Inside, files are written; after it those that are finished are in `target`."""
    if isinstance(target, Path):
        yield Staging(target)
        return

    with (
        scratch.folder() as folder,
        ThreadPoolExecutor(_FILES_AT_ONCE, "upload") as pool,
    ):
        staging = _UploadingStaging(folder, target, pool)
        try:
            yield staging
            staging.wait()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
