"""The layout of a checkpoint on disk, and when it exists.

<model_dir>/checkpoint                        text: the newest checkpoint and all others, as the reference writes it
<model_dir>/model.ckpt-120/manifest.json      written last: without it the folder is not a checkpoint
<model_dir>/model.ckpt-120/table-0003-<table>-ps-00000-of-00002-<save id>.arrow
<model_dir>/model.ckpt-120/filter-0003-..., touched-0003-...      of tables that have them
<model_dir>/model.ckpt-120/variables-ps-00000-of-00002-<save id>.arrow
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

from megalith.runtime.files import sync, write_atomically
from megalith.wire.errors import CheckpointDamaged, CheckpointNotFound

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
STATE_FILE = "checkpoint"


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a checkpoint. `kind` is "table", "filter", "touched" or "variables"; `rows` counts what is in it."""

    name: str
    kind: str
    table: str
    rows: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint consists of."""

    step: int
    num_ps: int
    saved_at_s: float
    files: tuple[ShardFile, ...]

    @property
    def rows(self) -> int:
        """Embedding rows in all tables."""
        return sum(file.rows for file in self.files if file.kind == "table")


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """What one ps took out of a checkpoint when it started; see Restored in coordination.proto."""

    path: str = ""
    step: int = 0
    rows: int = 0
    expired: int = 0
    left_out: int = 0
    seconds: float = 0.0


def directory_for(model_dir: Path, step: int) -> Path:
    return model_dir / f"model.ckpt-{step}"


def write(directory: Path, manifest: Manifest) -> None:
    """Make the checkpoint exist, then drop files of an earlier save of the same step."""
    content = {"format": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    sync(directory)
    write_atomically(directory / MANIFEST, json.dumps(content, indent=1).encode())
    listed = {file.name for file in manifest.files} | {MANIFEST}
    for path in directory.iterdir():
        if path.name not in listed:
            path.unlink(missing_ok=True)  # a ps that is late with an earlier save may have renamed it meanwhile


def read(directory: Path) -> Manifest:
    """The manifest of a complete checkpoint; the files themselves are not looked at."""
    try:
        content = json.loads((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise CheckpointNotFound(f"{directory} has no {MANIFEST}: not a complete checkpoint") from None
    except ValueError as error:
        raise CheckpointDamaged(f"{directory / MANIFEST} is not JSON: {error}") from error
    version = content.pop("format", None) if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise CheckpointDamaged(f"{directory / MANIFEST} has format {version}, this version reads {FORMAT_VERSION}")
    try:
        files = tuple(ShardFile(**file) for file in content.pop("files"))
        return Manifest(**content, files=files)
    except (TypeError, KeyError) as error:
        raise CheckpointDamaged(f"{directory / MANIFEST} lacks or misnames a field: {error}") from error


def verify(directory: Path, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is what was written."""
    path = directory / file.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing") from None
    if size != file.bytes:
        raise CheckpointDamaged(f"{path} has {size} bytes, the manifest says {file.bytes}")
    digest = sha256_of(path)
    if digest != file.sha256:
        raise CheckpointDamaged(f"{path} has sha256 {digest}, the manifest says {file.sha256}")


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def latest(model_dir: Path) -> Path | None:
    """Directory of the newest complete checkpoint that the state file names, or None."""
    paths = re.findall(r'^(?:all_)?model_checkpoint_paths?: "(.*)"$', _state_text(model_dir), re.MULTILINE)
    complete = (model_dir / path for path in (*paths[:1], *reversed(paths[1:])))
    return next((path for path in complete if (path / MANIFEST).exists()), None)


def record_latest(model_dir: Path, directory: Path, saved_at_s: float) -> None:
    """Name `directory` as the newest checkpoint in the state file, keeping the older entries."""
    text = _state_text(model_dir)
    paths = re.findall(r'^all_model_checkpoint_paths: "(.*)"$', text, re.MULTILINE)
    times = re.findall(r"^all_model_checkpoint_timestamps: (\S+)$", text, re.MULTILINE)
    entries = {path: time for path, time in zip(paths, times, strict=False) if path != directory.name}
    entries[directory.name] = repr(saved_at_s)
    lines = [
        f'model_checkpoint_path: "{directory.name}"',
        *(f'all_model_checkpoint_paths: "{path}"' for path in entries),
        *(f"all_model_checkpoint_timestamps: {time}" for time in entries.values()),
        f"last_preserved_timestamp: {saved_at_s!r}",
    ]
    write_atomically(model_dir / STATE_FILE, ("\n".join(lines) + "\n").encode())


def _state_text(model_dir: Path) -> str:
    try:
        return (model_dir / STATE_FILE).read_text()
    except FileNotFoundError:
        return ""
