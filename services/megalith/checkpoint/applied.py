"""The file of what a ps remembers of applied pushes, in an increment.

One row per client: client_id, incarnation, and by position sequences, kinds and lost. `kinds` says
which call each write was, empty if that is not known; `lost` says why nobody knows whether it was
applied, empty if it was. The schema's metadata has the run and the ps that the numbers belong to,
as JSON under "megalith".

The pushes in it are those that are in the rows of the same increment: no other, and no fewer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from megalith.checkpoint import arrow_files, manifest
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.manifest import ShardFile
from megalith.errors import CheckpointDamaged

_META = b"megalith"
_SCHEMA = pa.schema(
    [
        pa.field("client_id", pa.string()),
        pa.field("incarnation", pa.uint64()),
        pa.field("sequences", pa.list_(pa.int64())),
        pa.field("kinds", pa.list_(pa.string())),
        pa.field("lost", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """One write. `lost` is why nobody knows what became of it; empty = it was applied."""

    sequence: int
    kind: str
    lost: str = ""


@dataclass(frozen=True, slots=True)
class ClientWrites:
    """The last writes of one client to one ps."""

    client_id: str
    incarnation: int
    writes: tuple[AppliedWrite, ...]


@dataclass(frozen=True, slots=True)
class AppliedWrites:
    """What one ps remembers. Sequences mean something to that ps in that run only."""

    run_id: str
    clients: tuple[ClientWrites, ...]


def write(applied: AppliedWrites, directory: Path, name: str) -> ShardFile:
    rows = [_row(client) for client in applied.clients]
    about = json.dumps({"run_id": applied.run_id})
    schema = _SCHEMA.with_metadata({_META: about})
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))

    return arrow_files.written(path, FileKind.APPLIED, "", len(rows))


def read(directory: Path, file: ShardFile) -> AppliedWrites:
    manifest.verify(directory, file)
    with arrow_files.opened(directory, file) as reader:
        try:
            about = json.loads(reader.schema.metadata[_META])
            rows: Sequence[dict[str, Any]] = reader.read_all().to_pylist()
            return AppliedWrites(about["run_id"], tuple(_client(row) for row in rows))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointDamaged(
                f"{directory / file.name} does not tell applied pushes: {error!r}"
            ) from error


def _row(client: ClientWrites) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "incarnation": client.incarnation,
        "sequences": [each.sequence for each in client.writes],
        "kinds": [each.kind for each in client.writes],
        "lost": [each.lost for each in client.writes],
    }


def _client(row: dict[str, Any]) -> ClientWrites:
    columns = zip(row["sequences"], row["kinds"], row["lost"], strict=True)
    writes = tuple(AppliedWrite(sequence, kind, lost) for sequence, kind, lost in columns)
    return ClientWrites(row["client_id"], row["incarnation"], writes)
