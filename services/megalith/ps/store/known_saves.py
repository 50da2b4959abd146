"""The saves that a replica may have loaded, and from where in the delta logs it goes on then."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.saving.save import Sets

_READER = "saves"  # of the delta logs
_ALWAYS = 2  # the newest saves: the last one may not have become complete


class _KnownSave(NamedTuple):
    sets: Sets
    at_s: float


class KnownSaves:
    """By save id: which sets of the delta logs are in its files.

    What changed since is kept for replicas that load such a save, as far as the delta logs have
    room: since the last saves, and since those of the last `memory_s`, because loading one takes a
    while. `_lock` guards the saves.
    """

    def __init__(
        self, holder: ShardHolder, memory_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._holder = holder
        self._memory_s = memory_s
        self._clock = clock
        self._lock = threading.Lock()
        self._saves: dict[str, _KnownSave] = {}  # oldest first

    def add(self, save_id: str, sets: Sets) -> None:
        """That save has everything up to these sets."""
        now_s = self._clock()
        with self._lock:
            self._saves[save_id] = _KnownSave(sets, now_s)

            for old in list(self._saves)[:-_ALWAYS]:
                if now_s - self._saves[old].at_s > self._memory_s:
                    del self._saves[old]

            known = list(self._saves.values())

        self._keep_changes_since(known)

    def sets_of(self, save_id: str) -> Sets | None:
        """None if this process knows nothing of the save."""
        with self._lock:
            known = self._saves.get(save_id)

        return None if known is None else known.sets

    def _keep_changes_since(self, known: list[_KnownSave]) -> None:
        for table in self._holder.tables():
            name = table.config.name
            numbers = [save.sets[name] for save in known if name in save.sets]

            if numbers:
                # Below its begin are the numbers of an earlier table of that name
                oldest = max(min(numbers), table.changes.begin)
                table.changes.acknowledge(_READER, oldest)
