"""The streams of a replica to all ps of the routing map."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from megalith.kernels.dtypes import Bools
from megalith.protos import replication_pb2 as pb
from megalith.replica.copies.following import Following, PsProcess
from megalith.replica.copies.model import ServedModel
from megalith.replica.copies.ps_copy import CopyCounts, PsCopy
from megalith.wire.routing import Routing


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The part of all buckets that a replica holds: share `index` of `count`; 0 = all."""

    index: int
    count: int
    buckets: Bools


class FollowedServers:
    """One following for each ps, by index.

    `_lock` guards the followings and what was counted; one thread changes them.
    """

    def __init__(
        self,
        name: str,
        share: HeldShare,
        on_version: Callable[[pb.VersionEnd], None],
        max_message_bytes: int,
        is_controller_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name` is that of the replica, under which the ps keep what changes for it.

        `is_controller_away` says whether it was asked a moment ago and knew of no map.
        """
        self._name = name
        self._share = share
        self._on_version = on_version
        self._max_message_bytes = max_message_bytes
        self._is_controller_away = is_controller_away
        self._lock = threading.Lock()
        self._followings: list[Following] = []
        self._counts: dict[int, CopyCounts] = {}  # by index of the ps

    @property
    def all(self) -> list[Following]:
        """By index of the ps."""
        with self._lock:
            return list(self._followings)

    @property
    def counts(self) -> list[CopyCounts]:
        """Of every index that was ever followed, so that their sums never go back."""
        with self._lock:
            return list(self._counts.values())

    def stop(self) -> None:
        """End all streams. What was applied stays, and a later `follow` goes on from there."""
        for following in self.all:
            following.stop()

    def forget(self) -> None:
        """Forget the followings, which are stopped: another model is filled from now on."""
        with self._lock:
            self._followings = []

    def follow(self, routing: Routing, model: ServedModel, save_id: str = "") -> bool:
        """Follow the ps of that map; whether that is other than what was followed before.

        `save_id` says what a model has that nobody has filled yet: the rows of that save.
        """
        old = self.all
        if any(following.copy.model is model for following in old):
            save_id = ""

        followings = []
        for index, process in enumerate(_processes(routing)):
            before = old[index] if index < len(old) else None
            followings.append(self._following(index, process, model, save_id, before))

        if followings == old:
            return False

        for following in old:
            if following not in followings:
                following.stop()

        is_another_run = bool(old) and old[0].process.run_id != routing.run_id
        # Nobody fills it for the old map any more
        model.reshape(len(followings), is_another_run=is_another_run)
        with self._lock:
            self._followings = followings

        for following in followings:
            if following not in old:
                following.start()

        return True

    def _following(
        self,
        index: int,
        process: PsProcess,
        model: ServedModel,
        save_id: str,
        before: Following | None,
    ) -> Following:
        """The one of before if it still runs; after one that was stopped, another of its copy."""
        copy = None
        if before is not None and before.process == process and before.copy.model is model:
            if not before.is_stopped:
                return before

            copy = before.copy

        if copy is None:
            with self._lock:
                counts = self._counts.setdefault(index, CopyCounts())

            copy = PsCopy(
                model,
                index,
                self._share.buckets,
                on_version=self._on_version,
                counts=counts,
                save_id=save_id,
            )

        begin = pb.FollowBegin(
            run_id=process.run_id,
            replica=self._name,
            share_index=self._share.index,
            share_count=self._share.count,
        )
        return Following(copy, process, begin, self._max_message_bytes, self._is_controller_away)


def _processes(routing: Routing) -> list[PsProcess]:
    instances = routing.instances or ("",) * len(routing.addresses)
    processes = []
    for address, instance in zip(routing.addresses, instances, strict=True):
        processes.append(PsProcess(routing.run_id, address, instance))

    return processes
