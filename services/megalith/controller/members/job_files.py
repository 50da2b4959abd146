"""The small files of a controller in its model directory, by which the next one knows it.

Beside the names of the others, here are the runs of the directory that are over, and what a
controller could tell nobody when it ended.
"""

import logging
import os
from pathlib import Path

from megalith.control import address_file
from megalith.runtime.files import open_plain, write_atomically

logger = logging.getLogger(__name__)

LOCK = "controller.lock"
GENERATIONS = "controller.generation"
JOURNAL = "controller_state.json"
_ENDED_RUNS = "controller_ended_run.txt"
_LAST_WORDS = "controller_last_words.txt"

_MAX_RUN_ID = 256
_MAX_ENDED = 1000  # runs; a member that was away for longer than so many is not expected
_MAX_WORDS_BYTES = 4096


def is_of_a_job(directory: Path) -> bool:
    """Whether it is the model directory of a job, also of one that is over."""
    names = (LOCK, GENERATIONS, JOURNAL, address_file.CONTROLLER.name)
    return any(os.path.lexists(directory / name) for name in names)


# --- runs that are over: a member of one must not carry its rows into the next ---


def record_ended_run(model_dir: Path, run_id: str) -> bool:
    """Remember that this run is over; False if that cannot be written now."""
    if not run_id:  # of a version that had none
        return True

    try:
        others = [ended for ended in _read_ended_runs(model_dir) if ended != run_id]
        kept = [*others, run_id][-_MAX_ENDED:]
        write_atomically(model_dir / _ENDED_RUNS, "\n".join(kept).encode())
    except OSError as error:
        logger.warning("the end of run %s is not recorded: %s", run_id, error)
        return False

    return True


def ended_runs(model_dir: Path) -> tuple[str, ...]:
    """The runs of this directory that have ended, the last one last."""
    try:
        return _read_ended_runs(model_dir)
    except OSError as error:
        logger.warning(
            "%s: %s; members of runs that have ended are not told apart",
            _ENDED_RUNS,
            error.strerror,
        )
        return ()


def _read_ended_runs(model_dir: Path) -> tuple[str, ...]:
    try:
        with open_plain(model_dir / _ENDED_RUNS, "rb") as file:
            content = file.read(_MAX_ENDED * _MAX_RUN_ID)
    except FileNotFoundError:
        return ()

    text = content.decode(errors="replace")
    return tuple(text.split())


# --- last words, kept for the next controller to say ---


def leave_last_words(model_dir: Path, text: str) -> None:
    """Keep `text` until somebody says it."""
    try:
        write_atomically(model_dir / _LAST_WORDS, text.encode())
    except OSError as error:
        logger.warning(
            "%s is not written (%s): the next controller will not say it", _LAST_WORDS, error
        )


def last_words(model_dir: Path) -> str:
    """What the last controller left; empty if it left nothing."""
    try:
        with open_plain(model_dir / _LAST_WORDS, "rb") as file:
            return file.read(_MAX_WORDS_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        logger.warning("%s cannot be read: %s", _LAST_WORDS, error.strerror)
        return ""


def forget_last_words(model_dir: Path) -> None:
    """They are said, and kept with the losses of the present run."""
    try:
        (model_dir / _LAST_WORDS).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s stays and will be said again: %s", _LAST_WORDS, error.strerror)
