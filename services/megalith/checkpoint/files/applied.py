"""The file of what a ps remembers of applied pushes, in a checkpoint or an increment.

One row per client: client_id, incarnation, and by position sequences, kinds and lost. `kinds` says
which call each write was, empty if that is not known; `lost` says why nobody knows whether it was
applied, empty if it was. The schema's metadata has, as JSON under "megalith", the run that the
numbers belong to, and whether clients were forgotten that are not in it.

In an increment, the pushes are those that are in its rows: no other, and no fewer. A checkpoint is
written while clients push. What they pushed meanwhile may be in a part of its rows, so its outcome
is lost.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged

_META = b"megalith"
_DURING_SAVE = (
    "it was applied while the checkpoint was saved that this server was restored from, so that a "
    "part of it may be in there"
)
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
    """What one ps remembers. Sequences mean something to that ps in that run only.

    `has_forgotten` = it once knew clients that are not among these.
    """

    run_id: str
    clients: tuple[ClientWrites, ...]
    has_forgotten: bool = False


def around_a_save(before: AppliedWrites, after: AppliedWrites) -> AppliedWrites:
    """What a checkpoint says whose rows were read between the two moments."""
    sequences_before = {}
    for client in before.clients:
        sequences = {write.sequence for write in client.writes}
        sequences_before[client.client_id, client.incarnation] = sequences

    clients = []
    for client in after.clients:
        whole = sequences_before.get((client.client_id, client.incarnation), set())
        writes = []
        for write in client.writes:
            if write.sequence not in whole and not write.lost:
                write = replace(write, lost=_DURING_SAVE)

            writes.append(write)

        clients.append(replace(client, writes=tuple(writes)))

    return replace(after, clients=tuple(clients))


def write(applied: AppliedWrites, directory: Path, name: str) -> ShardFile:
    about = {"run_id": applied.run_id, "has_forgotten": applied.has_forgotten}
    metadata = {_META: json.dumps(about)}
    schema = _SCHEMA.with_metadata(metadata)
    rows = [_row(client) for client in applied.clients]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)

    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)

    return arrow_files.written(path, FileKind.APPLIED, "", len(rows))


def read(directory: Location, file: ShardFile) -> AppliedWrites:
    with arrow_files.verified(directory, file) as reader:
        try:
            about = json.loads(reader.schema.metadata[_META])
            rows: Sequence[dict[str, Any]] = reader.read_all().to_pylist()
            clients = tuple(_client(row) for row in rows)
            # Early versions do not say whether any was forgotten, so one may have been.
            has_forgotten = about.get("has_forgotten", True)
            return AppliedWrites(about["run_id"], clients, has_forgotten)
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
    writes = []
    for sequence, kind, lost in columns:
        write = AppliedWrite(sequence, kind, lost)
        writes.append(write)

    return ClientWrites(row["client_id"], row["incarnation"], tuple(writes))
