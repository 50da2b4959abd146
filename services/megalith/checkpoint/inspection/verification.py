"""Whether a checkpoint is whole: every file what was written, every row where it belongs.

Restoring checks what it needs in order to load rows. This looks at everything, goes on after the
first fault, and names the file of each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from megalith.checkpoint.directory import increments
from megalith.checkpoint.files import blobs as blob_files
from megalith.checkpoint.files import filters as filter_files
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.inspection import files as checked_files
from megalith.checkpoint.inspection.progress import NoProgress, ProgressDisplay
from megalith.checkpoint.layout import arrow_files, blocks, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import CheckpointNotFound, MegalithError
from megalith.kernels.dtypes import I64, Bools
from megalith.runtime.counting import counted
from megalith.wire import routing

_IDS_AT_ONCE = 1 << 26  # ids of a table in memory, 8 bytes each, while it looks for equal ones
_NAMED = 3  # ids in a message


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file of a checkpoint."""

    file: str
    what: str


@dataclass(slots=True)
class Verification:
    """What was looked at, and what is wrong; without problems the checkpoint is whole.

    The increments of a checkpoint are part of it; files of theirs have the folder of the increment
    before their names. `unnamed` are files beside those that the manifest names. They do no harm.
    """

    path: str
    step: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    increments: int = 0
    problems: list[Problem] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.problems


def verify(directory: Location, progress: ProgressDisplay | None = None) -> Verification:
    """Look at every byte of a checkpoint. CheckpointNotFound if there is none at that path.

    That a running job removes it, or its increments, meanwhile is no damage.
    """
    if not directory.is_dir():
        raise CheckpointNotFound(f"{directory} is not there; megalith ckpt ls lists checkpoints")

    result = Verification(str(directory))
    progress = progress or NoProgress()
    is_readable = _Verifier(directory, result, progress).run()
    if result.problems and not directory.is_dir():
        raise CheckpointNotFound(
            f"{directory} was removed while it was looked at; megalith ckpt ls lists what there is"
        )

    if is_readable:
        with_increments = replace(result, problems=[*result.problems], unnamed=[*result.unnamed])
        _verify_increments(directory, with_increments, progress)
        if increments.has_any(directory):  # otherwise the job has saved, and they went with that
            return with_increments

    return result


def _verify_increments(
    directory: Location, result: Verification, progress: ProgressDisplay
) -> None:
    """The increments of a checkpoint, and that none of them is missing."""
    try:
        chain = increments.read_chain(directory)
    except MegalithError as error:
        result.problems.append(Problem(increments.FOLDER, str(error)))
        return

    for increment in chain.increments:
        folder = f"../{increments.FOLDER}/{directory.name}/{increment.directory.name}"
        _Verifier(increment.directory, result, progress, f"{folder}/").run()

    result.increments = chain.number
    result.step = chain.last.step
    result.rows = chain.last.rows


class _Verifier:
    """One look at a checkpoint or an increment; it adds to a result.

    `prefix` stands before the names of files.
    """

    def __init__(
        self, directory: Location, result: Verification, progress: ProgressDisplay, prefix: str = ""
    ) -> None:
        self._directory = directory
        self._progress = progress
        self._result = result
        self._prefix = prefix
        self._check_content: dict[FileKind, Callable[[ShardFile, Any], None]] = {
            FileKind.TABLE: self._check_table,
            FileKind.FILTER: self._check_filter,
            FileKind.TOUCHED: self._check_ids,
            FileKind.DROPPED: self._check_ids,
            FileKind.VARIABLES: self._check_variables,
            FileKind.BLOBS: self._check_blobs,
        }

        self._variables: dict[str, list[tuple[int, int, str]]] = {}
        self._blobs: set[str] = set()
        self._layouts: dict[str, str] = {}  # of the rows of a table, as its first file says

    def run(self) -> bool:
        """Look at everything; whether its manifest could be read."""
        try:
            content = manifest.read(self._directory)
        except (MegalithError, OSError) as error:
            self._complain(MANIFEST, _without_path(error, self._directory / MANIFEST))
            return False

        num_bytes = sum(file.bytes for file in content.files)
        self._result.step = content.step
        self._result.files += len(content.files)
        self._result.rows = content.rows
        self._result.bytes += num_bytes

        for name in _unnamed(self._directory, content):
            self._result.unnamed.append(f"{self._prefix}{name}")

        shown_name = self._prefix or self._directory.name
        self._progress.begin(f"verifying {shown_name}", num_bytes)
        for file in content.files:
            self._check(file)

        if content.link is None:  # of equal ids in an increment the last one counts
            self._check_ids_differ(content)

        self._check_parts()
        self._check_tables_have_rows(content)
        return True

    def _complain(self, file: str, what: str) -> None:
        self._result.problems.append(Problem(f"{self._prefix}{file}", what))

    def _check(self, file: ShardFile) -> None:
        """The bytes of a file; what they mean only if they are those that were written."""
        path = self._directory / file.name
        try:
            checked_files.check_file(self._directory, file, self._progress)
            check = self._check_content.get(file.kind)

            with arrow_files.opened(self._directory, file) as reader:
                if check is not None:
                    check(file, reader)

        except MegalithError as error:
            self._complain(file.name, _without_path(error, path))
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            self._complain(file.name, f"its content makes no sense: {error!r}")

    # --- by kind ---

    def _check_table(self, file: ShardFile, reader: Any) -> None:
        header = table_files.header(self._directory, file)
        if header.config.name != file.table:
            self._complain(
                file.name,
                f"has rows of table {header.config.name!r}, the manifest says {file.table!r}",
            )

        layout = RowLayout(header.config)
        of_others = self._layouts.setdefault(file.table, layout.signature)
        if layout.signature != of_others:
            self._complain(
                file.name,
                f"has rows {layout.signature}, and other files of table {file.table} have "
                f"rows {of_others}",
            )

        seen = np.zeros(routing.NUM_BUCKETS, np.bool_)
        rows = 0
        not_finite = 0
        num_misplaced = 0
        misplaced: list[int] = []

        for number in range(reader.num_record_batches):
            record_batch = reader.get_batch(number)
            record_batch.validate(full=True)
            batch = table_files.row_batch(record_batch)
            width = batch.embeddings.shape[1] + batch.states.shape[1]
            if width != layout.width:
                self._complain(
                    file.name,
                    f"has rows of {width} floats, but its table {file.table} has {layout.width}",
                )
                return

            rows += batch.ids.size
            not_finite += _num_not_finite(batch)

            buckets = routing.buckets_of(batch.ids)
            seen[buckets] = True

            stated = record_batch.column("bucket").to_numpy()
            is_misplaced = stated != buckets
            num_misplaced += int(np.count_nonzero(is_misplaced))
            misplaced += batch.ids[is_misplaced][:_NAMED].tolist()

        self._check_count(file, rows, "rows")
        self._check_blocks(file, reader)
        self._check_buckets(file, seen, is_exact=True)

        if misplaced:
            self._complain(
                file.name,
                f"has {counted(num_misplaced, 'row')} with another bucket than that of the id: "
                f"{_some(misplaced)}",
            )

        if not_finite:
            self._complain(file.name, f"has {counted(not_finite, 'row')} with NaN or infinity")

    def _check_blocks(self, file: ShardFile, reader: Any) -> None:
        """Each record batch is a block of the manifest, with rows of the buckets that it names."""
        found = blocks.blocks_of(file)
        if not found:
            return

        schema = table_files.schema_of(self._directory, file)
        batches = found[1:-1]  # between head and end
        if len(batches) != reader.num_record_batches:
            self._complain(
                file.name,
                f"has {reader.num_record_batches} record batches, the manifest says {len(batches)}",
            )

        for block in batches:
            for batch in table_files.block_rows(self._directory, file, schema, block):
                buckets = routing.buckets_of(batch.ids)
                named = (block.first, block.last)
                if (int(buckets.min()), int(buckets.max())) != named:
                    self._complain(
                        file.name,
                        f"has rows of the buckets {buckets.min()}-{buckets.max()} in a block of "
                        f"the buckets {block.first}-{block.last}",
                    )

    def _check_filter(self, file: ShardFile, reader: Any) -> None:
        everywhere = np.ones(routing.NUM_BUCKETS, np.bool_)
        state = filter_files.read_filter(reader, file.name, everywhere)

        if state is not None:
            num_blocks = len(state["blocks"])
            self._check_count(file, num_blocks, "blocks")

    def _check_ids(self, file: ShardFile, reader: Any) -> None:
        table = reader.read_all()
        ids = table.column("id").to_numpy()
        buckets = routing.buckets_of(ids)

        seen = np.zeros(routing.NUM_BUCKETS, np.bool_)
        seen[buckets] = True

        self._check_count(file, ids.size, "ids")
        self._check_buckets(file, seen, is_exact=False)

    def _check_variables(self, file: ShardFile, reader: Any) -> None:
        found = 0
        for saved in variable_files.read_all(reader):
            found += 1

            piece = (saved.part, saved.parts, file.name)
            self._variables.setdefault(saved.name, []).append(piece)

            arrays = [saved.value, *saved.state.values()]
            is_finite = all(np.isfinite(array).all() for array in arrays)
            if not is_finite:
                self._complain(file.name, f"variable {saved.name!r} is NaN or infinite")

        self._check_count(file, found, "variables")

    def _check_blobs(self, file: ShardFile, reader: Any) -> None:
        """Each name is there once, in the file of the server that owned it."""
        seen = np.zeros(routing.NUM_BUCKETS, np.bool_)
        for blob in blob_files.read(reader, file):
            ids = np.array([routing.id_of_name(blob.name)], np.int64)
            seen[routing.buckets_of(ids)] = True
            if blob.name in self._blobs:
                self._complain(file.name, f"has blob {blob.name!r}, which is there twice")

            self._blobs.add(blob.name)

        self._check_buckets(file, seen, is_exact=False)

    def _check_count(self, file: ShardFile, found: int, what: str) -> None:
        if found != file.rows:
            self._complain(
                file.name,
                f"has {found} {what}, the manifest says {file.rows}",
            )

    def _check_buckets(self, file: ShardFile, seen: Bools, *, is_exact: bool) -> None:
        """The ids' buckets are those of the manifest: all of them, or only such.

        Early manifests do not say them.
        """
        if not file.buckets:
            return

        stated = arrow_files.buckets_of(file)
        is_wrong = seen & ~stated
        if is_exact:
            is_wrong = seen != stated

        if is_wrong.any():
            self._complain(
                file.name,
                f"has ids of buckets {arrow_files.ranges_of(seen)}, "
                f"the manifest says {file.buckets}",
            )

    # --- across files ---

    def _check_ids_differ(self, content: Manifest) -> None:
        """No id is in a table twice. Files with a problem are left out: they are named already."""
        damaged = {problem.file for problem in self._result.problems}
        by_table: dict[str, list[ShardFile]] = {}

        for file in content.files:
            is_whole = file.name not in damaged
            if file.kind == FileKind.TABLE and is_whole:
                by_table.setdefault(file.table, []).append(file)

        for table, files in by_table.items():
            repeated = self._repeated_ids(files)
            if not repeated.size:
                continue

            for name in self._files_with(files, repeated):
                self._complain(
                    name,
                    f"has ids that table {table} has twice, {repeated.size} in all: "
                    f"{_some(repeated.tolist())}",
                )

    def _repeated_ids(self, files: list[ShardFile]) -> I64:
        num_rows = sum(file.rows for file in files)
        num_passes = max(1, -(-num_rows // _IDS_AT_ONCE))  # rounded up
        found = []

        for number in range(num_passes):
            parts = [np.empty(0, np.int64)]
            for file in files:
                for ids in checked_files.ids_of(self._directory, file):
                    if num_passes > 1:
                        pass_of = routing.buckets_of(ids) % num_passes
                        ids = ids[pass_of == number]

                    parts.append(ids)

            ids = np.sort(np.concatenate(parts))
            later = ids[1:]
            is_repeated = later == ids[:-1]
            found.append(np.unique(later[is_repeated]))

        return np.concatenate(found)

    def _files_with(self, files: list[ShardFile], ids: I64) -> list[str]:
        names = []
        for file in files:
            parts = checked_files.ids_of(self._directory, file)
            if any(np.isin(part, ids).any() for part in parts):
                names.append(file.name)

        return names

    def _check_parts(self) -> None:
        """Every variable is there once, with all of its parts."""
        for name, pieces in self._variables.items():
            _, parts, file = pieces[0]
            found = sorted(part for part, _, _ in pieces)
            if found != list(range(parts)):
                self._complain(
                    file,
                    f"variable {name!r}: parts {found} of {parts} are in the files",
                )

    def _check_tables_have_rows(self, content: Manifest) -> None:
        """A filter or touched ids belong to a table that the checkpoint has."""
        tables = {file.table for file in content.files if file.kind == FileKind.TABLE}
        for file in content.files:
            is_about_table = file.kind in (FileKind.FILTER, FileKind.TOUCHED)
            if is_about_table and file.table not in tables:
                self._complain(
                    file.name,
                    f"is about table {file.table!r}, but no file has its rows",
                )


def _num_not_finite(batch: table_files.RowBatch) -> int:
    is_finite = np.isfinite(batch.embeddings).all(axis=1)
    is_finite &= np.isfinite(batch.states).all(axis=1)
    return int(np.count_nonzero(~is_finite))


def _unnamed(directory: Location, content: Manifest) -> list[str]:
    named = {file.name for file in content.files}
    named.add(MANIFEST)

    present = {path.name for path in directory.iterdir() if not _is_mark(path)}
    return sorted(present - named)


def _is_mark(path: Location) -> bool:
    return isinstance(path, ObjectPath) and object_folders.is_mark(path.name)


def _some(ids: Iterable[int]) -> str:
    listed = list(ids)
    shown = ", ".join(str(number) for number in listed[:_NAMED])
    if len(listed) > _NAMED:
        return f"{shown}, ..."

    return shown


def _without_path(error: Exception, path: Location) -> str:
    """What an error says of a file, without the name that stands before it anyway."""
    text = str(error)
    for prefix in (str(path), path.name):
        text = text.removeprefix(f"{prefix} ").removeprefix(f"{prefix}: ")

    return text
