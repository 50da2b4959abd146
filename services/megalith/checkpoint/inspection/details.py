"""What lies in one checkpoint: tables with segments, variables, blobs, filters, files, routing."""

import base64
from dataclasses import dataclass, field

import numpy as np

from megalith.checkpoint.directory import increments
from megalith.checkpoint.files import blobs as blob_files
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.schema import Segment
from megalith.wire.pieces import BOOK_PREFIX


@dataclass(frozen=True, slots=True)
class SegmentDetails:
    """One segment of a table's rows; its optimizer and so on by name."""

    dim: int
    optimizer: str
    initializer: str
    compressor: str


@dataclass(slots=True)
class TableDetails:
    """One table. `features` are those whose rows it has, if features made it.

    `data_time_s` is the newest time of its data, Unix seconds; 0 = none seen. `filter_bytes` is
    what the counts of its admission filter take; None without a filter.
    """

    name: str
    features: list[str]
    segments: list[SegmentDetails]
    expire_days: int
    data_time_s: int | None = None
    rows: int = 0
    bytes: int = 0
    filter_bytes: int | None = None
    admission: str = ""


@dataclass(frozen=True, slots=True)
class VariableDetails:
    """One variable, in as many parts as it was saved in."""

    name: str
    dtype: str
    shape: list[int]
    parts: int
    bytes: int
    optimizer: str


@dataclass(frozen=True, slots=True)
class BlobDetails:
    """One blob."""

    name: str
    bytes: int


@dataclass(slots=True)
class Details:
    """What lies in a checkpoint.

    `buckets_by_ps` is how many buckets each ps had, and `cursors` how many workers' places in the
    input it has. Its `increments` are counted; `step`, `rows` and `blobs` are those after the
    last of them.
    """

    path: str
    step: int
    saved_at_s: float
    num_ps: int
    rows: int
    bytes: int
    tables: list[TableDetails] = field(default_factory=list)
    variables: list[VariableDetails] = field(default_factory=list)
    blobs: list[BlobDetails] = field(default_factory=list)
    buckets_by_ps: list[int] = field(default_factory=list)
    cursors: int = 0
    has_pieces: bool = False  # its one cursor is of an input that the controller hands out
    increments: int = 0
    files: list[ShardFile] = field(default_factory=list)


def _has_pieces(content: Manifest) -> bool:
    cursors = [base64.b64decode(text) for text in content.cursors]
    return any(cursor.startswith(BOOK_PREFIX) for cursor in cursors)


def details(directory: Location) -> Details:
    """What the manifest and the files say; sizes are checked, the rows are not read."""
    chain = increments.read_chain(directory)
    content = chain.base
    for folder, each in chain.folders:
        for file in each.files:
            manifest.check_size(folder, file)

    return Details(
        path=str(directory),
        step=chain.last.step,
        saved_at_s=content.saved_at_s,
        num_ps=content.num_ps,
        rows=chain.last.rows,
        bytes=sum(file.bytes for file in content.files),
        tables=_tables(content, directory),
        variables=_variables(content, directory),
        blobs=_blobs(*chain.folders[-1]),
        buckets_by_ps=_buckets_by_ps(content),
        cursors=len(content.cursors),
        has_pieces=_has_pieces(content),
        increments=chain.number,
        files=list(content.files),
    )


def _tables(content: Manifest, directory: Location) -> list[TableDetails]:
    tables: dict[str, TableDetails] = {}
    for file in content.files:
        if file.kind != FileKind.TABLE:
            continue

        header = table_files.header(directory, file)
        config = header.config
        table = tables.get(file.table)
        if table is None:
            segments = [_segment(segment) for segment in config.segments]
            features = list(config.features)
            table = TableDetails(file.table, features, segments, config.expire_days)

            if config.admission is not None:
                table.admission = str(config.admission.kind)

            tables[file.table] = table

        table.rows += file.rows
        table.bytes += file.bytes
        if header.data_time_s is not None:
            table.data_time_s = max(table.data_time_s or 0, header.data_time_s)

    for file in content.files:
        table = tables.get(file.table)
        if table is not None and file.kind == FileKind.FILTER:
            table.filter_bytes = (table.filter_bytes or 0) + file.bytes

    return [tables[name] for name in sorted(tables)]


def _segment(segment: Segment) -> SegmentDetails:
    return SegmentDetails(
        segment.dim,
        segment.optimizer.name,
        segment.initializer.name,
        segment.compressor.name,
    )


def _variables(content: Manifest, directory: Location) -> list[VariableDetails]:
    described: dict[str, VariableDetails] = {}
    for file in content.files:
        if file.kind != FileKind.VARIABLES:
            continue

        with arrow_files.opened(directory, file) as reader:
            pieces = list(variable_files.read_all(reader))

        for piece in pieces:
            rows = piece.value.shape[0] if piece.value.ndim else 0
            known = described.get(piece.name)
            shape = list(piece.value.shape)
            if known is not None:
                shape[0] = known.shape[0] + rows

            described[piece.name] = VariableDetails(
                piece.name,
                str(piece.value.dtype),
                shape,
                piece.parts,
                piece.value.nbytes + (known.bytes if known else 0),
                piece.optimizer.name if piece.optimizer else "none",
            )

    return [described[name] for name in sorted(described)]


def _blobs(directory: Location, content: Manifest) -> list[BlobDetails]:
    described = []
    for file in blob_files.files_of(content):
        with arrow_files.opened(directory, file) as reader:
            for blob in blob_files.read(reader, file):
                details = BlobDetails(blob.name, blob.size)
                described.append(details)

    return sorted(described, key=lambda blob: blob.name)


def _buckets_by_ps(content: Manifest) -> list[int]:
    """How many buckets each ps had; empty for early versions, which do not say it."""
    counts = []
    for file in content.files:
        if file.kind != FileKind.VARIABLES:
            continue

        if not file.buckets:
            return []

        is_its = arrow_files.buckets_of(file)
        counts.append(int(np.count_nonzero(is_its)))

    return counts
