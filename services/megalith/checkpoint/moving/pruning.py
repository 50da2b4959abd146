"""Removing old checkpoints by hand, and what killed saves have left.

A job removes its own by its settings (directory/retention.py). This is for directories without a
job, and for people who need the room.
"""

import shutil
import time
from dataclasses import dataclass

from megalith.checkpoint.directory import catalog, exempt_list, users
from megalith.checkpoint.inspection.overview import Entry, FolderStanding, overview
from megalith.checkpoint.storage.location import Location
from megalith.errors import InvalidRequest

YOUNG_S = 3600.0  # what is left of a save that changed so lately may be a save under way


@dataclass(frozen=True, slots=True)
class Removal:
    """A folder that goes, and why."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder that stays, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What would be removed, or was."""

    path: str
    removals: tuple[Removal, ...]
    kept: tuple[Kept, ...]

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.removals)


def plan(model_dir: Location, keep: int, now_s: float | None = None) -> PrunePlan:
    """What goes if the `keep` newest checkpoints stay; nothing is removed yet.

    These never go: the newest complete one, the one that the list names as the newest, those that
    the file of exempt checkpoints names, and those that another job starts from.
    """
    if keep < 1:
        raise InvalidRequest(f"--keep {keep}: at least 1 is kept, so that the job can start again")
    if exempt_list.is_unreadable(model_dir):
        raise InvalidRequest(
            f"{model_dir / exempt_list.FILE} cannot be read, so nobody knows which checkpoints are "
            "exempt; correct it, or move it away"
        )

    seen = overview(model_dir)
    now_s = time.time() if now_s is None else now_s
    complete = [entry for entry in seen.entries if entry.standing == FolderStanding.COMPLETE]
    newest = {entry.name for entry in complete[-keep:]}
    used = users.in_use(model_dir)
    removals = []
    kept = []

    for entry in seen.entries:
        if entry.standing == FolderStanding.MISSING:
            continue

        reason = _why_kept(entry, newest, now_s)
        if not reason and entry.name in used:
            reason = "another job starts from it"

        if reason:
            kept.append(Kept(entry.name, reason))
        else:
            why = "old" if entry.standing == FolderStanding.COMPLETE else str(entry.standing)
            removals.append(Removal(entry.name, entry.bytes, why))

    return PrunePlan(str(model_dir), tuple(removals), tuple(kept))


def _why_kept(entry: Entry, newest: set[str], now_s: float) -> str:
    """Why a folder stays; empty if it goes."""
    if entry.is_newest:
        return "newest in the list"
    if entry.is_exempt:
        return "exempt"
    if entry.name in newest:
        return "among the newest"
    if entry.standing == FolderStanding.DAMAGED:
        return "damaged: look at it, then remove it yourself"
    if entry.standing == FolderStanding.INCOMPLETE and entry.is_listed:
        return "in the list, but not complete: look at it, then remove it yourself"

    age_s = entry.age_s(now_s)
    is_young = age_s is not None and age_s < YOUNG_S
    if entry.standing == FolderStanding.INCOMPLETE and is_young:
        return "changed less than an hour ago: it may be a save under way"

    return ""


def prune(model_dir: Location, keep: int) -> PrunePlan:
    """Remove what `plan` names; returns what is gone.

    A checkpoint loses its place in the list and its name before its files go, so there is no moment
    at which a part of one looks like a whole.
    """
    planned = plan(model_dir, keep)
    gone = []
    for removal in planned.removals:
        if catalog.step_of(removal.name) is None:
            shutil.rmtree(str(model_dir / removal.name))
            gone.append(removal)
        elif catalog.remove(model_dir, removal.name):
            gone.append(removal)

    return PrunePlan(planned.path, tuple(gone), planned.kept)
