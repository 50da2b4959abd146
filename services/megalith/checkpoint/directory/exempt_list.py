"""The file `monolith_checkpoint` of a model directory: which checkpoints are never removed.

It is Monolith's, in its text format:

    exempt_model_checkpoint_paths: "model.ckpt-120"
    last_checkpoint_save_timestamp: 1790003600
    builtin_hash_table_type: MULTI_CUCKOO_HASH_MAP

A person adds a line for each checkpoint that is to stay. Everything else in it is written for
Monolith's tools. A slip of the pen makes all of it unreadable, and no checkpoint is removed: what
comes before the slip must not pass for the whole list.
"""

import logging
import re
from dataclasses import dataclass, replace
from typing import Self

from megalith.checkpoint.directory import state_text
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, name_of

logger = logging.getLogger(__name__)

FILE = "monolith_checkpoint"
_EXEMPT = "exempt_model_checkpoint_paths"
_SAVED_AT = "last_checkpoint_save_timestamp"
_TABLES = "builtin_hash_table_type"
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_FIELDS = (_EXEMPT, _SAVED_AT, _TABLES)
_TABLE_KINDS = ("UNKNOWN", "CUCKOO_HASH_MAP", "MULTI_CUCKOO_HASH_MAP")


@dataclass(frozen=True, slots=True)
class ExemptList:
    """What the file says. `table_kind` is Monolith's name for how tables are stored."""

    paths: tuple[str, ...] = ()
    saved_at_s: int = 0
    table_kind: str = "MULTI_CUCKOO_HASH_MAP"

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError, which says where, for a text that is not of this format to its end."""
        fields = state_text.parse_whole(text, _FIELDS)
        (saved_at,) = fields.get(_SAVED_AT, ["0"])[-1:]
        (kind,) = fields.get(_TABLES, ["UNKNOWN"])[-1:]
        if kind.isdigit() and int(kind) < len(_TABLE_KINDS):
            kind = _TABLE_KINDS[int(kind)]

        if not _WHOLE_NUMBER.fullmatch(saved_at):
            raise ValueError(f"{_SAVED_AT} {saved_at} is no whole number")
        if kind not in _TABLE_KINDS:
            known = ", ".join(_TABLE_KINDS)
            raise ValueError(f"{_TABLES} {kind} is none of {known}")

        names = tuple(fields.get(_EXEMPT, ()))
        return cls(names, int(saved_at), kind)

    @property
    def names(self) -> frozenset[str]:
        """Of folders; a checkpoint is exempt by its name, wherever the path before it leads."""
        return frozenset(name_of(path) for path in self.paths)

    def text(self) -> str:
        return (
            state_text.string_lines(_EXEMPT, self.paths)
            + state_text.line(_SAVED_AT, str(self.saved_at_s))
            + state_text.line(_TABLES, self.table_kind)
        )


def read(model_dir: Location) -> ExemptList | None:
    """None if there is no such file, or none that can be read, which is logged."""
    path = model_dir / FILE
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s: Checkpoint ignored: %s", path, error)
        return None

    try:
        return ExemptList.parse(text)
    except ValueError as error:
        logger.warning(
            "%s: Checkpoint ignored: it is not in Monolith's text format: %s", path, error
        )
        return None


def is_unreadable(model_dir: Location) -> bool:
    """Whether there is a file of which nobody knows what it exempts."""
    return (model_dir / FILE).exists() and read(model_dir) is None


def create(model_dir: Location) -> None:
    """Write the file of a directory that has none."""
    with stored.locked(model_dir):
        if not (model_dir / FILE).exists():
            stored.write(model_dir / FILE, ExemptList().text().encode())


def note_save(model_dir: Location, saved_at_s: float) -> None:
    """Say when the last save was; who is exempt stays as it is, and so does a file of others."""
    with stored.locked(model_dir):
        if is_unreadable(model_dir):
            return

        noted = replace(read(model_dir) or ExemptList(), saved_at_s=int(saved_at_s))
        stored.write(model_dir / FILE, noted.text().encode())
