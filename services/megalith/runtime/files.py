"""Files that are whole or absent."""

import os
import secrets
from pathlib import Path

from megalith.wire.errors import InvalidSetting


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` in one rename; a reader sees the old content or the new, also after a crash."""
    temporary = path.with_name(f"{path.name}-tmp-{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Return once the file, or the names in the directory, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare_model_dir(model_dir: str) -> Path:
    """The directory as an absolute path, made if missing and proven writable."""
    if not model_dir:
        raise InvalidSetting("--model-dir is not given; it holds checkpoints and the controller's address")
    path = Path(model_dir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidSetting(f"directory {model_dir}: not writable ({error.strerror}); choose another") from error
    return path
