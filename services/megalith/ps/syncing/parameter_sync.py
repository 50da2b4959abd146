"""Parameter sync: changed rows go to the serving processes of Monolith's kind, period by period."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from google.protobuf import json_format

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import InvalidSetting
from megalith.protos import parameter_sync_pb2 as pb
from megalith.ps.store.store import Store
from megalith.ps.syncing.metrics import SyncMetrics
from megalith.ps.syncing.settings import SyncSettings
from megalith.ps.syncing.target_sync import TargetSync
from megalith.ps.syncing.targets import Target

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks whether this ps may push
_LAST_S = 10.0  # for a last push when the server stops


class ParameterSync:
    """Pushes to all targets, one after the other, every `sync_every_s`. One thread does it.

    Only a ps that holds its seat pushes: `may_push`. Another process may have newer rows.
    """

    def __init__(
        self,
        settings: SyncSettings,
        store: Store,
        metrics: SyncMetrics,
        may_push: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._may_push = may_push

        self._syncs: dict[Target, TargetSync] = {}
        self._list_error = ""
        self._is_waiting = False  # targets have been pushed to, and may not be now
        self._left_out: list[str] = []
        self._ends_s = math.inf  # on the monotonic clock; no call begins after it

        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parameter-sync", daemon=True)

    def start(self) -> None:
        """Nothing runs if there are no targets."""
        if self._settings.is_on:
            self._thread.start()

    def stop(self) -> None:
        """Send what is left, within `_LAST_S`, and end the thread."""
        self._ends_s = time.monotonic() + _LAST_S
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

        for sync in self._syncs.values():
            sync.close(self._store.tables())

    def push_once(self) -> str:
        """Send each target what it lacks.

        Returns what became of each call as JSON, and nothing if there was none.
        """
        self._follow_list()
        tables = self._tables()
        for table in tables:
            table.changes.seal()

        result = pb.PushResult()
        for target in sorted(self._syncs):
            result.responses.extend(self._push_to(target, tables))

        if not result.responses:
            return ""

        return json_format.MessageToJson(result, preserving_proto_field_name=True, indent=None)

    def _push_to(self, target: Target, tables: Sequence[EmbeddingTable]) -> list[pb.PushResponse]:
        sync = self._syncs[target]
        before = sync.complaint
        responses = sync.push(tables)
        if sync.complaint and sync.complaint != before:
            logger.warning(
                "target %s did not take everything; it is sent again: %s", target, sync.complaint
            )
        elif before and not sync.complaint:
            logger.info("target %s has everything again", target)

        return responses

    def _follow_list(self) -> None:
        """Connect to new targets, and leave those that are not listed any more."""
        try:
            listed = self._settings.targets(self._store.index)
        except InvalidSetting as error:
            if str(error) != self._list_error:
                logger.warning("the targets stay as they are: %s", error)
            self._list_error = str(error)
            return

        self._list_error = ""
        for target in [target for target in self._syncs if target not in listed]:
            self._syncs.pop(target).close(self._store.tables())
            logger.info("target %s is not listed any more", target)

        for target in listed:
            if target not in self._syncs:
                self._syncs[target] = self._sync_of(target)

    def _sync_of(self, target: Target) -> TargetSync:
        return TargetSync(target, self._settings, self._metrics, self._may_go_on)

    def _may_go_on(self) -> bool:
        return self._may_push() and time.monotonic() < self._ends_s

    def _tables(self) -> list[EmbeddingTable]:
        """By name. Without a delta log nobody knows what changed, so such a table is left out."""
        tables = sorted(self._store.tables(), key=lambda table: table.config.name)
        left_out = [table.config.name for table in tables if not table.changes.is_on]
        if left_out != self._left_out:
            self._left_out = left_out
            for name in left_out:
                logger.warning(
                    "table %s is not synced: its touched_capacity is 0, so that nobody knows "
                    "which rows change; give the table a touched_capacity",
                    name,
                )

        self._metrics.leave_out(len(left_out))
        return [table for table in tables if table.changes.is_on]

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            if not self._may_push():
                self._wait_for_seat()
                continue

            self._is_waiting = False
            self._push_and_say()
            left_s = began_s + self._settings.sync_every_s - time.monotonic()
            self._stopping.wait(max(0.0, left_s))

        self._push_and_say()
        behind = [str(target) for target, sync in self._syncs.items() if not sync.has_everything]
        if behind:
            logger.warning(
                "this server stops before these targets have everything: %s. The next one sends "
                "them all rows",
                ", ".join(behind),
            )

    def _wait_for_seat(self) -> None:
        if self._syncs and not self._is_waiting:
            self._is_waiting = True
            logger.warning(
                "the targets get nothing: this ps has not heard its controller lately, so another "
                "process may have its seat; it goes on once the controller answers"
            )

        for sync in self._syncs.values():
            sync.wait()

        self._stopping.wait(_LOOK_S)

    def _push_and_say(self) -> None:
        try:
            result = self.push_once()
            if result:
                logger.info("parameter sync result=%s", result)
        except Exception:
            logger.exception("parameter sync failed; it goes on with the next period")
