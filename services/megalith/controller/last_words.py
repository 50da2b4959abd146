"""What a controller could tell nobody when it ended, kept in the model directory for the next one to say."""

import logging
from pathlib import Path

from megalith.runtime.files import open_plain, write_atomically

logger = logging.getLogger(__name__)

_FILE_NAME = "controller_last_words.txt"
_MAX_BYTES = 4096


def leave(model_dir: Path, text: str) -> None:
    """Keep `text` until somebody says it."""
    try:
        write_atomically(model_dir / _FILE_NAME, text.encode())
    except OSError as error:
        logger.warning(
            "%s is not written (%s): the next controller will not say it", _FILE_NAME, error
        )


def read(model_dir: Path) -> str:
    """What the last controller left; empty if it left nothing."""
    try:
        with open_plain(model_dir / _FILE_NAME, "rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        logger.warning("%s cannot be read: %s", _FILE_NAME, error.strerror)
        return ""


def forget(model_dir: Path) -> None:
    """They are said, and kept with the losses of the present run."""
    try:
        (model_dir / _FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s stays and will be said again: %s", _FILE_NAME, error.strerror)
