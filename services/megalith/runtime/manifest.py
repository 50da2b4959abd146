"""The layout of a checkpoint on disk, and when it exists.

<model_dir>/checkpoint                        text: the newest checkpoint and all others, as the reference writes it
<model_dir>/model.ckpt-120/manifest.json      what the checkpoint consists of
<model_dir>/model.ckpt-120/table-0003-<table>-ps-00000-of-00002-<save id>.arrow
<model_dir>/model.ckpt-120/filter-0003-..., touched-0003-...      of tables that have them
<model_dir>/model.ckpt-120/variables-ps-00000-of-00002-<save id>.arrow
<model_dir>/model.ckpt-r1-120/                the second save of step 120; the step follows the last "-"
<model_dir>/saving-120-<save id>/             a save under way, of the job of this directory
<model_dir>/saving-120-<save id>-export/      one of another job, which was told to save here

A save writes into a folder of its own, which gets its name once it is complete. So a folder named model.ckpt-* never
changes: no save writes into it, replaces it or removes it.

The list names a checkpoint after its folder got its name. So before a directory gets its first folder, it gets a list
that says so. A controller that dies between the two leaves a folder that the next one finds; a folder without any list
means that somebody took the list away.
"""

import dataclasses
import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megalith.runtime.files import sync, write_atomically
from megalith.wire.errors import CheckpointDamaged, CheckpointNotFound

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)  # files of version 1 do not say which buckets they are about
MANIFEST = "manifest.json"
STATE_FILE = "checkpoint"
# The list of a directory whose first checkpoint is about to get its name; other readers of the format find no newest.
_FIRST_IS_PUBLISHED = (
    '# the first checkpoint of this directory is being published\nmodel_checkpoint_path: ""\n'
)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a checkpoint. `kind` is "table", "filter", "touched" or "variables"; `rows` counts what is in it.

    `buckets` are those that it is about: of the ids in a table's file, of the server that wrote it for the others. They
    are ranges such as "0-511,600-600", or "none"; empty = unknown, any.
    """

    name: str
    kind: str
    table: str
    rows: int
    bytes: int
    sha256: str
    buckets: str = ""


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
    tables: int = 0
    variables: int = 0


def work_directory(model_dir: Path, step: int, save_id: str, *, is_own: bool = True) -> Path:
    """Where a save writes until it is complete; `is_own` = the job saves into its own model directory."""
    return model_dir / (f"saving-{step}-{save_id}" if is_own else f"saving-{step}-{save_id}-export")


def own_work_directories(model_dir: Path) -> list[Path]:
    """Of saves of the job of that directory; each but the one under way was left by a controller that died."""
    folders = (
        path for path in model_dir.glob("saving-*") if path.is_dir() and not path.is_symlink()
    )
    return sorted(path for path in folders if re.fullmatch(r"saving-\d+-[0-9a-f]+", path.name))


def write(directory: Path, manifest: Manifest) -> None:
    """Say what the files of a directory are; they are on disk before the manifest is."""
    content = {"format": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    sync(directory)
    write_atomically(directory / MANIFEST, json.dumps(content, indent=1).encode())


def publish(work: Path, model_dir: Path, step: int) -> Path:
    """Make a complete folder the checkpoint of its step, under the first name that is free; returns where it is.

    Of two that publish the same step at once, one gets the next name.
    """
    _announce_first(model_dir)
    while True:
        path = free_directory(model_dir, step)
        try:
            os.rename(work, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            sync(model_dir)
            return path


def _announce_first(model_dir: Path) -> None:
    """Write the list of a directory that has no checkpoint yet."""
    with _list_of_one_writer(model_dir):
        if _folders(model_dir):
            return  # they have a list; if it was taken away meanwhile, that must stay visible
        text = _state_text(model_dir)
        if text is not None and "model_checkpoint_path" in text:
            return
        if text:
            _keep_aside(model_dir / STATE_FILE)
        write_atomically(model_dir / STATE_FILE, _FIRST_IS_PUBLISHED.encode())


def free_directory(model_dir: Path, step: int) -> Path:
    """Where the next checkpoint of that step goes; NotADirectoryError if a file has that name."""
    names = (f"model.ckpt-r{k}-{step}" if k else f"model.ckpt-{step}" for k in itertools.count())
    for name in names:
        path = model_dir / name
        if not os.path.lexists(path):
            return path
        if not path.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "there is a file where the checkpoint's folder belongs", str(path)
            )
    raise AssertionError("the names do not end")


def read(directory: Path) -> Manifest:
    """The manifest of a complete checkpoint; the files themselves are not looked at."""
    try:
        content = json.loads((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise CheckpointNotFound(
            f"{directory} has no {MANIFEST}: not a complete checkpoint"
        ) from None
    except ValueError as error:
        raise CheckpointDamaged(f"{directory / MANIFEST} is not JSON: {error}") from error
    version = content.pop("format", None) if isinstance(content, dict) else None
    if version not in _READ_VERSIONS:
        raise CheckpointDamaged(
            f"{directory / MANIFEST} has format {version}, this version reads {_READ_VERSIONS}"
        )
    try:
        files = tuple(ShardFile(**file) for file in content.pop("files"))
        return Manifest(**content, files=files)
    except (TypeError, KeyError) as error:
        raise CheckpointDamaged(
            f"{directory / MANIFEST} lacks or misnames a field: {error}"
        ) from error


def verify(directory: Path, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is what was written."""
    path = directory / file.name
    check_size(directory, file)
    digest = sha256_of(path)
    if digest != file.sha256:
        raise CheckpointDamaged(f"{path} has sha256 {digest}, the manifest says {file.sha256}")


def check_size(directory: Path, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is there, with the length that was written."""
    path = directory / file.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing") from None
    if size != file.bytes:
        raise CheckpointDamaged(f"{path} has {size} bytes, the manifest says {file.bytes}")


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def latest(model_dir: Path) -> Path | None:
    """Directory of the checkpoint that the state file names as the newest.

    None in a directory that has never had a checkpoint. Where there is a trace of one, but it cannot be found, this is
    a CheckpointNotFound or CheckpointDamaged: a job never starts empty because a file is missing.
    """
    state_file = model_dir / STATE_FILE
    text = _state_text(model_dir)
    if text == _FIRST_IS_PUBLISHED:
        return _newest_folder(model_dir)
    if text is None:
        folders = [path.name for path in _folders(model_dir)]
        if not folders:
            return None
        raise CheckpointNotFound(
            f"{state_file} is missing, and {model_dir} has {', '.join(folders[-5:])}; to start from one of them, write "
            f'one line into that file: model_checkpoint_path: "{folders[-1]}"; {_how_to_start_empty(model_dir)}'
        )
    named = re.search(r'^model_checkpoint_path: "(.*)"$', text, re.MULTILINE)
    if named is None:
        raise CheckpointDamaged(
            f"{state_file} names no checkpoint: it has no line like "
            f'model_checkpoint_path: "model.ckpt-120"; correct it, or {_how_to_start_empty(model_dir)}'
        )
    path = model_dir / named[1]
    if not (path / MANIFEST).exists():
        raise CheckpointNotFound(
            f"{state_file} names {named[1]} as the newest checkpoint, but {path / MANIFEST} is missing; "
            f"{ways_out(model_dir)}"
        )
    return path


def complete_list(model_dir: Path) -> None:
    """Name the first checkpoint, if a controller died after it was complete and before the list named it."""
    if _state_text(model_dir) != _FIRST_IS_PUBLISHED:
        return
    newest = _newest_folder(model_dir)
    if newest is None:
        return
    logger.warning(
        "%s was saved by a controller that died before it was listed; it is listed now", newest
    )
    record_latest(model_dir, newest, read(newest).saved_at_s)


def _newest_folder(model_dir: Path) -> Path | None:
    """The complete folder that was saved last; only for a directory whose list does not name one yet."""
    complete = [path for path in _folders(model_dir) if (path / MANIFEST).exists()]
    return max(complete, key=lambda path: read(path).saved_at_s, default=None)


def _folders(model_dir: Path) -> list[Path]:
    return sorted(path for path in model_dir.glob("model.ckpt-*") if path.is_dir())


def ways_out(model_dir: Path) -> str:
    """What an operator may do about a checkpoint that a job cannot start from."""
    return (
        f"put it back, or name an older checkpoint in {model_dir / STATE_FILE} (model_checkpoint_path), "
        f"or {_how_to_start_empty(model_dir)}"
    )


def _how_to_start_empty(model_dir: Path) -> str:
    here, away = shlex.quote(str(model_dir)), shlex.quote(str(model_dir / "moved-away"))
    return (
        "to start with an empty model on purpose, take another --model-dir or move the checkpoints away: "
        f"mkdir {away} && mv {here}/checkpoint {here}/model.ckpt-* {away}"
    )


def record_latest(model_dir: Path, directory: Path, saved_at_s: float) -> None:
    """Name `directory` as the newest checkpoint in the state file, keeping the older entries."""
    with _list_of_one_writer(model_dir):
        text = _state_text(model_dir) or ""
        if text and "model_checkpoint_path" not in text:
            _keep_aside(model_dir / STATE_FILE)
        paths = re.findall(r'^all_model_checkpoint_paths: "(.*)"$', text, re.MULTILINE)
        times = re.findall(r"^all_model_checkpoint_timestamps: (\S+)$", text, re.MULTILINE)
        times += ["0.0"] * (
            len(paths) - len(times)
        )  # other writers of this format may leave them out
        entries = {
            path: time for path, time in zip(paths, times, strict=False) if path != directory.name
        }
        entries[directory.name] = repr(saved_at_s)
        lines = [
            f'model_checkpoint_path: "{directory.name}"',
            *(f'all_model_checkpoint_paths: "{path}"' for path in entries),
            *(f"all_model_checkpoint_timestamps: {time}" for time in entries.values()),
            f"last_preserved_timestamp: {saved_at_s!r}",
        ]
        write_atomically(model_dir / STATE_FILE, ("\n".join(lines) + "\n").encode())


def is_recorded(model_dir: Path, directory: Path) -> bool:
    """Whether the state file names `directory` as the newest checkpoint."""
    text = _state_text(model_dir) or ""
    return f'model_checkpoint_path: "{directory.name}"' in text.splitlines()


def _keep_aside(path: Path) -> None:
    """Somebody's file under the name of the list: it is not overwritten."""
    kept = path.with_name(f"{path.name}-kept-{secrets.token_hex(4)}")
    os.replace(path, kept)
    logger.warning("%s was no list of checkpoints; it is now %s", path, kept)


@contextmanager
def _list_of_one_writer(model_dir: Path) -> Iterator[None]:
    """Two jobs that save into one directory change its list in turn, where the file system has locks."""
    descriptor = os.open(model_dir, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _state_text(model_dir: Path) -> str | None:
    """None without a state file."""
    try:
        return (model_dir / STATE_FILE).read_text(errors="replace")
    except FileNotFoundError:
        return None
