"""Which files a `--data` names, and in which format each one is."""

import glob
import os
from collections.abc import Sequence
from enum import StrEnum

from megalith.errors import BadData
from megalith.tasks.input.windows import DatedFile, DatedPattern, Window, is_dated


class FileFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    TSV = "tsv"
    TFRECORD = "tfrecord"  # of tf.train.Example
    EXAMPLES = "examples"  # of ExampleBatch


_FORMATS = {
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
    ".tfrecord": FileFormat.TFRECORD,
    ".tfrecords": FileFormat.TFRECORD,
    ".examples": FileFormat.EXAMPLES,
}

_NAMING_COLUMNS = (FileFormat.PARQUET, FileFormat.TFRECORD, FileFormat.EXAMPLES)


def found_files(patterns: Sequence[str], window: Window | None = None) -> list[str]:
    """The files that the patterns name, each once; those of one pattern in the order of names.

    A pattern is a path, or has the wildcards `*`, `?`, `[...]` and `**`. With `{date}` and `{hour}`
    it names the files of the window, in the order of time; several such patterns together, too. One
    that names nothing is an error, and so is a folder.
    """
    found: dict[str, int] = {}  # the hour of each file, in the order of the patterns
    for pattern in patterns:
        files = _named_by(pattern, window or Window())
        if not files:
            raise BadData(f"{pattern}: there is no such file")

        for file in files:
            path = file.path
            if not os.path.isdir(path):
                found.setdefault(path, file.hour)
            elif path == pattern:
                raise BadData(f"{path} is a folder; name its files, for example '{path}/*.parquet'")

    if not found:
        raise BadData(f"{', '.join(patterns)}: there are folders of these names, but no files")

    if all(is_dated(pattern) for pattern in patterns):
        return sorted(found, key=lambda path: (found[path], path))

    return list(found)


def named_now(patterns: Sequence[str], window: Window) -> list[DatedFile]:
    """The files that there are now, perhaps none; those of a pattern without {date} at hour 0.

    A name that begins with an underscore is of a file that is not whole yet, or no data.
    """
    found: dict[str, DatedFile] = {}
    for pattern in patterns:
        for file in _named_by(pattern, window):
            name = os.path.basename(file.path)
            if not name.startswith("_"):
                found.setdefault(file.path, file)

    return sorted(found.values(), key=lambda file: (file.hour, file.path))


def _named_by(pattern: str, window: Window) -> Sequence[DatedFile]:
    """Files and folders; those of a pattern without {date} at hour 0."""
    if is_dated(pattern):
        return DatedPattern(pattern).find(window).files

    paths = sorted(glob.glob(pattern, recursive=True))
    if not paths and os.path.exists(pattern):
        paths = [pattern]  # a name with a bracket in it

    return [DatedFile(0, path) for path in paths]


def format_of(path: str, is_headless: bool = False) -> FileFormat:
    """By the end of the name; text without a header line is TSV unless it ends in .csv."""
    ending = os.path.splitext(path)[1].lower()
    if is_headless and _FORMATS.get(ending) not in _NAMING_COLUMNS:
        return FileFormat.CSV if ending == ".csv" else FileFormat.TSV
    if ending not in _FORMATS:
        raise BadData(
            f"{path}: the name ends in {ending or 'nothing'!r}; "
            f"files that are read end in {', '.join(_FORMATS)}"
        )

    return _FORMATS[ending]
