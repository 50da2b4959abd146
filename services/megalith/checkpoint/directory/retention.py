"""How many checkpoints of a model directory are kept, and which one goes when another comes."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from megalith.checkpoint.directory.listing import Listing

logger = logging.getLogger(__name__)

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule of a job, which is Monolith's.

    The `max_to_keep` newest checkpoints are kept; those that are exempt come on top of them. With
    each save at most one leaves the list, the oldest. Every `keep_every_n_hours` one that leaves
    the list is kept on disk for good; 0 = none is. `max_to_keep` = 0 keeps all of them, and the
    list has the newest alone.

    Those that were saved in place of an increment go with the next save.

    `began_at_s` is when the hours begin to count in a directory whose list does not say it yet.
    Monolith begins anew with each process, so that a job that is restarted every day keeps none;
    here the list says when the last one was kept. And where no save was made for longer than
    `keep_every_n_hours`, Monolith keeps several in a row; here it is one.
    """

    max_to_keep: int = 10
    keep_every_n_hours: float = 24.0
    began_at_s: float = 0.0

    def drop(
        self,
        listed: Listing,
        exempt: Collection[str],
        needed: Collection[str],
        outdated: str = "",
    ) -> str | None:
        """Take what is not kept out of the list; the name of a checkpoint to remove from disk.

        `exempt` and `needed` are names of folders: the first do not count among those that are
        kept, the second do, but something depends on them. `outdated` was saved in place of an
        increment: like one it goes with the next save, also where all others are kept. Meanwhile
        it has the place of one of them.
        """
        listed.last_preserved_s = listed.last_preserved_s or self.began_at_s
        is_free = outdated not in (*exempt, *needed, listed.newest)
        is_dropped = bool(outdated) and outdated in listed.time_by_name and is_free
        if not self.max_to_keep:
            newest = listed.newest or ""
            listed.time_by_name = {newest: listed.time_by_name.get(newest, "0.0")}
            return outdated if is_dropped else None

        if is_dropped:
            del listed.time_by_name[outdated]
            return outdated

        counted = [name for name in listed.time_by_name if _folder(name) not in exempt]
        if len(counted) <= self.max_to_keep:
            return None

        oldest = _oldest(counted, listed, needed)
        if oldest is None:
            return None

        saved_at_s = listed.time_of(oldest)
        del listed.time_by_name[oldest]
        if self._is_kept_for_good(listed, saved_at_s):
            logger.info(
                "%s leaves the list and stays on disk: one is kept every %g hours",
                oldest,
                self.keep_every_n_hours,
            )
            return None

        # An absolute path is a checkpoint of another directory, which is not ours to remove. And an
        # empty name, in a list that somebody has edited, would be the model directory itself.
        return oldest if oldest and oldest == _folder(oldest) else None

    def _is_kept_for_good(self, listed: Listing, saved_at_s: float) -> bool:
        every_s = self.keep_every_n_hours * _HOUR_S
        if not every_s or saved_at_s <= listed.last_preserved_s + every_s:
            return False

        num_periods = max(1, int((saved_at_s - listed.last_preserved_s) // every_s))
        listed.last_preserved_s += num_periods * every_s
        return True


def _oldest(names: list[str], listed: Listing, needed: Collection[str]) -> str | None:
    for name in names:
        if name != listed.newest and _folder(name) not in needed:
            return name

    return None


def _folder(name: str) -> str:
    return PurePosixPath(name).name
