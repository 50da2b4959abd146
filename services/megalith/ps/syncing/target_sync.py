"""One target's turn: everything that it lacks, call by call."""

import time
from collections.abc import Callable, Iterator, Sequence

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.protos import parameter_sync_pb2 as pb
from megalith.ps.syncing.metrics import SyncMetrics
from megalith.ps.syncing.request import SyncRequest, TableDelta
from megalith.ps.syncing.settings import SyncSettings
from megalith.ps.syncing.splitter import split
from megalith.ps.syncing.target_client import AWAY, TargetClient
from megalith.ps.syncing.target_cursor import TargetCursor
from megalith.ps.syncing.targets import Target


class TargetSync:
    """The connection and the cursor of one target. One thread uses it."""

    def __init__(
        self,
        target: Target,
        settings: SyncSettings,
        metrics: SyncMetrics,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._target = target
        self._settings = settings
        self._config = settings.client_config(target.shard, [target.address])
        self._metrics = metrics
        self._may_go_on = may_go_on

        self._client = TargetClient(target.address)
        self._cursor = TargetCursor(str(target), target.shard, settings.sync_num_ps)
        self._connections = 0  # of the client, when its last turn began

        self._had_everything_s: float | None = None
        self.has_everything = False  # after its last turn
        self.complaint = ""

    def push(self, tables: Sequence[EmbeddingTable]) -> list[pb.PushResponse]:
        """What became of each call; none if nothing changed since the last turn.

        Unless all of them were taken, the next turn sends the same ids again.
        """
        began_s = time.monotonic()
        self._forget_if_lost()
        full_pushes = self._cursor.full_pushes
        responses: list[pb.PushResponse] = []
        are_all_sent = self._send(tables, responses)
        errors = [each.error_message for each in responses if each.status_code]
        if are_all_sent and not responses:
            # What it had may be lost with it, also if nothing has changed since
            errors = [self._client.reach(self._settings.sync_timeout_ms / 1000)]

        self.complaint = errors[0] if errors else ""
        is_other = self._is_other_process(self._client.connections)
        self.has_everything = are_all_sent and not self.complaint and not is_other
        if self.has_everything:
            self._cursor.acknowledge(tables)
            self._had_everything_s = began_s

        full_pushes = self._cursor.full_pushes - full_pushes
        self._metrics.had_turn(str(self._target), self._staleness_s(), full_pushes)
        return responses

    def _send(self, tables: Sequence[EmbeddingTable], responses: list[pb.PushResponse]) -> bool:
        """Whether there was a call for every part. One that fails does not keep others back."""
        if not self._may_go_on():
            return False

        for part in self._parts(tables):
            if not self._may_go_on():
                return False

            response = self._call(part)
            responses.append(response)
            if response.status_code in AWAY:
                return False  # further calls of this turn would fail too, each after its time-out

        return True

    def _is_other_process(self, connections: int) -> bool:
        """Whether the connection was lost and made anew. The first one is no other."""
        return connections > max(1, self._connections)

    def _forget_if_lost(self) -> None:
        connections = self._client.connections  # once: another thread counts them
        if self._is_other_process(connections) and not self._settings.sync_resume:
            self._cursor.forget()

        self._connections = connections

    def wait(self) -> None:
        """It has no turn, because this ps may not push: it grows staler meanwhile."""
        self._metrics.had_turn(str(self._target), self._staleness_s(), 0)

    def close(self, tables: Sequence[EmbeddingTable]) -> None:
        """Keep nothing for this target any more."""
        self._cursor.dismiss(tables)
        self._client.close()
        self._metrics.forget(str(self._target))

    def _parts(self, tables: Sequence[EmbeddingTable]) -> Iterator[SyncRequest]:
        for deltas in self._cursor.deltas(tables):
            for part in split(self._request(deltas)):
                if part.rows:
                    yield part

    def _request(self, deltas: list[TableDelta]) -> SyncRequest:
        return SyncRequest(
            model_name=self._config.model_name,
            signature=self._config.signature_name,
            timeout_ms=self._config.timeout_in_ms,
            deltas=deltas,
            multi_table=self._settings.sync_multi_table,
        )

    def _call(self, part: SyncRequest) -> pb.PushResponse:
        began_s = time.monotonic()
        response = self._client.push(part)
        self._metrics.called(part, response, time.monotonic() - began_s)
        return response

    def _staleness_s(self) -> float:
        if self._had_everything_s is None:
            return -1.0

        return time.monotonic() - self._had_everything_s
