"""The list of a model directory: the text file that names its newest checkpoint and all others.

It is written as Monolith writes it, so that its tools find the newest checkpoint too:

    model_checkpoint_path: "model.ckpt-240"
    all_model_checkpoint_paths: "model.ckpt-120"
    all_model_checkpoint_paths: "model.ckpt-240"
    all_model_checkpoint_timestamps: 1790000000.0
    all_model_checkpoint_timestamps: 1790003600.0
    last_preserved_timestamp: 1789950000.0
"""

import logging
import math
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from megalith.checkpoint.directory import state_text
from megalith.checkpoint.format import LIST
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, is_absolute

logger = logging.getLogger(__name__)

# The list of a directory whose first checkpoint is about to get its name; other readers of the
# format find no newest.
FIRST_IS_PUBLISHED = (
    '# the first checkpoint of this directory is being published\nmodel_checkpoint_path: ""\n'
)

_NEWEST = "model_checkpoint_path"
_PATHS = "all_model_checkpoint_paths"
_TIMES = "all_model_checkpoint_timestamps"
_PRESERVED = "last_preserved_timestamp"


@dataclass(slots=True)
class Listing:
    """What a list says. `newest` is None if it names none.

    `time_by_name` has all checkpoints, oldest first, each with its time as the file gives it. A
    name is that of a folder beside the list, or the absolute path of one elsewhere; `read` sees
    to that. `last_preserved_s` is when the
    last checkpoint was saved that is kept for good, or when keeping began; see `retention.py`.
    """

    newest: str | None = None
    time_by_name: dict[str, str] = field(default_factory=dict)
    last_preserved_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        fields = state_text.parse(text)
        named = fields.get(_NEWEST)
        newest = named[-1] if named else None

        names = fields.get(_PATHS, [])
        times = fields.get(_TIMES, [])
        num_missing = len(names) - len(times)
        times += ["0.0"] * num_missing  # other writers of this format leave them out

        time_by_name = dict(zip(names, times, strict=False))
        preserved = fields.get(_PRESERVED, ["0.0"])
        return cls(newest, time_by_name, _seconds(preserved[-1]))

    @property
    def newest_time_s(self) -> float:
        """When the newest of all was saved, Unix seconds; 0 if none says it."""
        return max((_seconds(time) for time in self.time_by_name.values()), default=0.0)

    def time_of(self, name: str) -> float:
        """When a checkpoint was saved, Unix seconds; 0 if the list does not say it."""
        return _seconds(self.time_by_name.get(name, ""))

    def add(self, name: str, saved_at_s: float, *, is_whole: bool = True) -> bool:
        """List a checkpoint, as the newest if it is whole and no other is newer; whether it is."""
        self.time_by_name.pop(name, None)
        is_newest = is_whole and saved_at_s >= self.newest_time_s
        if is_newest or not self.newest:
            self.newest = name

        self.time_by_name[name] = repr(saved_at_s)
        return is_newest

    def names(self, name: str) -> bool:
        """Whether a checkpoint is in the list, as the newest or as an older one."""
        return name == self.newest or name in self.time_by_name

    def text(self) -> str:
        times = [state_text.line(_TIMES, time) for time in self.time_by_name.values()]
        return (
            state_text.string_lines(_NEWEST, [self.newest or ""])
            + state_text.string_lines(_PATHS, self.time_by_name)
            + "".join(times)
            + state_text.line(_PRESERVED, repr(self.last_preserved_s))
        )


def read_text(model_dir: Location) -> str | None:
    """None without a list."""
    path = model_dir / LIST
    try:
        with stored.allowed(path):
            return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def read(model_dir: Location) -> Listing:
    """The list; an empty one where there is none.

    Other writers of this format give absolute paths of folders beside the list too. Here they have
    the name that this product gives them, so that nobody takes them for those of another directory.
    """
    listed = Listing.parse(read_text(model_dir) or "")
    if listed.newest is not None:
        listed.newest = _name_in(model_dir, listed.newest)

    times = listed.time_by_name
    listed.time_by_name = {_name_in(model_dir, name): time for name, time in times.items()}
    return listed


def _name_in(model_dir: Location, name: str) -> str:
    """The name of a folder beside the list, however the list spells it; others stay as they are."""
    if not is_absolute(name):
        return name

    folder, _, last = name.rstrip("/").rpartition("/")
    if isinstance(model_dir, Path):
        is_here = os.path.realpath(folder) == os.path.realpath(model_dir)
    else:
        is_here = folder == str(model_dir)

    return last if is_here else name


def write(model_dir: Location, text: str) -> None:
    """Replace the list. Somebody's file under its name is kept aside."""
    path = model_dir / LIST
    before = read_text(model_dir)
    if before and not is_list(before):
        kept = path.with_name(f"{path.name}-kept-{secrets.token_hex(4)}")
        stored.move(path, kept)
        logger.warning("%s was no list of checkpoints; it is now %s", path, kept)

    stored.write(path, text.encode())


def is_list(text: str) -> bool:
    return _NEWEST in text


def _seconds(time: str) -> float:
    """A time of the list; 0 for what is none, which is older than all others."""
    try:
        seconds = float(time)
    except ValueError:
        return 0.0

    return seconds if math.isfinite(seconds) else 0.0
