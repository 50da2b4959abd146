"""Copying a checkpoint with its increments to another directory, also on another storage.

Each file is checked on the way. All of it is there afterwards, or nothing: the increments come
first and the checkpoint last, so that nobody starts from it without them.
"""

import secrets
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.inspection.progress import NoProgress, ProgressDisplay
from megalith.checkpoint.layout import integrity, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.moving import new_directory
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.preparation import prepared
from megalith.errors import SaveFailed

_WORKERS = 4  # files at once


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy that was made, and of what. `removed` was left of a command that was killed."""

    path: str
    source: str
    step: int
    increments: int
    files: int
    bytes: int
    removed: tuple[str, ...]


def copy(
    checkpoint: Location,
    model_dir: Location,
    *,
    workers: int = _WORKERS,
    progress: ProgressDisplay | None = None,
) -> Copied:
    """Make a checkpoint with its increments the first one of `model_dir`."""
    chain = increments.read_chain(checkpoint)
    target = prepared(str(model_dir))
    removed = new_directory.make_empty(target)
    with ThreadPoolExecutor(workers, "copy") as pool:
        path = _Copy(chain, target, pool, progress or NoProgress()).run()

    catalog.record_latest(target, path, chain.base.saved_at_s)
    copied = [file for _, content in chain.folders for file in content.files]
    num_bytes = sum(file.bytes for file in copied)

    return Copied(
        str(model_dir / path.name),
        str(checkpoint),
        chain.last.step,
        chain.number,
        len(copied),
        num_bytes,
        removed,
    )


class _Copy:
    """One copy."""

    def __init__(
        self, chain: Chain, target: Location, pool: ThreadPoolExecutor, progress: ProgressDisplay
    ) -> None:
        self._chain = chain
        self._target = target
        self._pool = pool
        self._progress = progress

    def run(self) -> Location:
        chain = self._chain
        num_bytes = chain.base_bytes + chain.increment_bytes
        self._progress.begin(f"copying {chain.directory.name}", num_bytes)
        base = catalog.free_directory(self._target, chain.base.step)
        try:
            for number, increment in enumerate(chain.increments, start=1):
                content = increment.manifest
                save_id = new_directory.save_id_of(content.save_id)

                work = increments.begin(base, number, content.step, save_id)
                self._fill(work, increment.directory, content, content.save_id)
                increments.publish(work, base, number)

            return self._publish_base()
        except BaseException as error:
            increments.remove_all(self._target)
            if isinstance(error, OSError):
                raise SaveFailed(f"{error}; nothing was copied") from error

            raise

    def _publish_base(self) -> Location:
        chain = self._chain
        save_id = chain.base.save_id or secrets.token_hex(4)
        work_id = new_directory.save_id_of(save_id)
        work = catalog.begin(self._target, chain.base.step, work_id)

        self._fill(work, chain.directory, chain.base, save_id)
        new_directory.check_held(work, save_id)
        return catalog.publish(work, self._target, chain.base.step)

    def _fill(self, work: Location, source: Location, content: Manifest, save_id: str) -> None:
        """Copy all files of a folder, and its manifest as it is: the next one has its checksum."""

        def copy_file(file: ShardFile) -> int:
            manifest.check_size(source, file)
            with stored.fetched(source / file.name) as local:
                integrity.verify(source, file, local)
                stored.put(local, work / file.name)

            return file.bytes

        copies = [self._pool.submit(copy_file, file) for file in content.files]
        try:
            for each in copies:
                self._progress.add(each.result())

            copy = manifest.before_publishing(work, save_id)
            stored.write(copy, (source / MANIFEST).read_bytes())
        except BaseException:
            for each in copies:
                each.cancel()

            futures.wait(copies)  # what is still being written would stay
            catalog.give_up(work)
            raise
