"""Which files a `--data` names, and in which format each one is."""

import glob
import os
from collections.abc import Sequence
from enum import StrEnum

from megalith.errors import BadData


class FileFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    TSV = "tsv"


_FORMATS = {
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
}


def found_files(patterns: Sequence[str]) -> list[str]:
    """The files that the patterns name, each once; those of one pattern in the order of names.

    A pattern is a path, or has the wildcards `*`, `?`, `[...]` and `**`. One that names nothing is
    an error, and so is a folder.
    """
    found: dict[str, None] = {}  # a set that keeps the order
    for pattern in patterns:
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths and os.path.exists(pattern):
            paths = [pattern]  # a name with a bracket in it
        if not paths:
            raise BadData(f"{pattern}: there is no such file")

        for path in paths:
            if not os.path.isdir(path):
                found[path] = None
            elif path == pattern:
                raise BadData(f"{path} is a folder; name its files, for example '{path}/*.parquet'")

    if not found:
        raise BadData(f"{', '.join(patterns)}: there are folders of these names, but no files")

    return list(found)


def format_of(path: str) -> FileFormat:
    """By the end of the name."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in _FORMATS:
        raise BadData(
            f"{path}: the name ends in {ending or 'nothing'!r}; "
            f"files that are read end in {', '.join(_FORMATS)}"
        )

    return _FORMATS[ending]
