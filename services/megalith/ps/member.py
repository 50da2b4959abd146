"""A parameter server's side of its session with the controller."""

import logging
import threading
from collections.abc import Callable

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.restoring import restore
from megalith.checkpoint.starting.choices import RestoreChoices
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import probe
from megalith.checkpoint.storage.location import locate
from megalith.checkpoint.storage.probe import StorageProbe
from megalith.errors import (
    ChangesForgotten,
    ChangesNotNoted,
    InvalidSetting,
    MegalithError,
    WrongRun,
)
from megalith.protos import common_pb2, coordination_pb2
from megalith.ps import resident_memory
from megalith.ps.benchmark import ScratchTable
from megalith.ps.shard_saving import ShardSaving
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.store import Store
from megalith.ps.warm_up import warm_up, warm_up_image
from megalith.runtime.joining.lease import Lease
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.presence import Presence
from megalith.runtime.joining.session import ControllerSession
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.wire import codec, routing
from megalith.wire.reports import PsReport, RestoreReport

logger = logging.getLogger(__name__)


class PsMember:
    """Restores what it is told to, then is ready; obeys the routing map; saves its shard on demand.

    Restoring and saving run on threads of their own, so that heart-beats go on meanwhile.
    """

    def __init__(
        self,
        index: int,
        num_ps: int,
        settings: MembershipSettings,
        presence: Presence,
        store: Store,
        known_saves: KnownSaves,
        lease: Lease,
        scratch: ScratchTable,
        addresses: Callable[[], tuple[str, str]],
        set_serving: Callable[[bool], None],
        recent_calls: Callable[[], tuple[float, float]],
        memory_limit_bytes: int,
        expire_on_save: bool,
        restore_over_budget: bool,
        stay_up: bool,
        exit_request: ExitRequest,
    ) -> None:
        self._index = index
        self._num_ps = num_ps
        self._store = store
        self._saving = ShardSaving(store, known_saves)
        self._scratch = scratch
        self._name = f"ps-{index}"
        self._shard = index  # until the welcome says which it is
        self._addresses = addresses
        self._set_serving = set_serving
        self._stay_up = stay_up
        self._exit_request = exit_request
        self._recent_calls = recent_calls
        self._memory_limit_bytes = memory_limit_bytes
        self._expire_on_save = expire_on_save
        self._restore_over_budget = restore_over_budget
        self._restored: RestoreReport | None = None  # known once it is ready
        self._was_welcomed = False
        self._cluster_num_ps = 0
        self._newest_epoch = 0  # also under earlier controllers: a new one goes on above it
        self._session = ControllerSession(settings, self, presence, lease)

    def start(self) -> None:
        self._session.start()

    def stop(self) -> None:
        self._session.stop()

    def register(self) -> coordination_pb2.Register:
        address, metrics_address = self._addresses()
        return coordination_pb2.Register(
            role=common_pb2.ROLE_PS,
            index=self._index,
            address=address,
            metrics_address=metrics_address,
            epoch=self._newest_epoch,
            num_ps=self._num_ps,
            held_shard=self._shard if self._was_welcomed else None,
            run_id=self._store.run_id,
        )

    def report(self) -> coordination_pb2.SessionRequest:
        store = self._store
        now = resident_memory.check(self._memory_limit_bytes)
        requests_per_s, p99_s = self._recent_calls()
        report = PsReport(
            is_ready=self._restored is not None,
            rows=store.rows,
            bytes=store.nbytes,
            pulls=store.pulls,
            pushes=store.pushes,
            requests_per_s=requests_per_s,
            p99_s=p99_s,
            resident_bytes=now.resident_bytes,
            memory_limit_bytes=now.memory_limit_bytes,
            complaint=now.complaint,
            tables=len(store.tables()),
            variables=len(store.variables()),
            dropped_tables=store.dropped_tables,
            restored=self._restored,
        )

        return coordination_pb2.SessionRequest(ps=codec.ps_report_to_proto(report))

    def on_welcome(self, welcome: coordination_pb2.Welcome) -> None:
        self._cluster_num_ps = welcome.num_ps
        if self._was_welcomed:  # back after a lost stream, with its rows
            self._session.report_now()
            return

        self._was_welcomed = True
        self._shard = welcome.shard
        self._store.take_index(welcome.shard)
        self._scratch.drop()
        threading.Thread(target=self._prepare, args=(welcome,), name="prepare", daemon=True).start()

    def on_standby(self) -> None:
        """Not needed yet: warm, healthy and empty until a welcome comes."""
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            warm_up()
            if not self._was_welcomed:
                self._set_serving(True)

            warm_up_image()  # there is time: a takeover must not wait for the kernels that restore
        except Exception:
            logger.exception("warming up failed; a takeover will try again")

    def on_measure(self, order: coordination_pb2.Measure) -> None:
        logger.warning("a ps measures nobody; ignored order %d", order.order)

    def on_ask_report(self, order: int) -> None:
        logger.warning("a ps is not asked for reports; ignored order %d", order)

    def _prepare(self, welcome: coordination_pb2.Welcome) -> None:
        """Everything that must be done before the first request."""
        if fault := self._storage_fault(welcome.storage_probe):
            self._exit_request.request(1, fault)
            return

        try:
            warm_up()
            if welcome.restore_from:
                checkpoint = locate(welcome.restore_from)
                choices = _choices_of(welcome.choices)
                owners = routing.decode_owners(welcome.owners)
                restored = restore.restore_shard(
                    self._store,
                    checkpoint,
                    owners,
                    self._shard,
                    through=_through(welcome),
                    over_budget=self._restore_over_budget,
                    choices=choices,
                )
                if choices.is_everything:  # otherwise only a full save has what is here
                    self._saving.restored(checkpoint, restored.increments)
            else:
                restored = RestoreReport()
        except Exception as error:
            if not isinstance(error, MegalithError):
                logger.exception("preparing failed")

            self._exit_request.request(
                1,
                f"cannot start from {welcome.restore_from or 'nothing'}: {error}; "
                f"{catalog.ways_out(locate(welcome.checkpoint_dir or welcome.model_dir))}",
            )

            return

        self._restored = restored
        self._set_serving(True)
        self._session.report_now()

    def _storage_fault(self, left: coordination_pb2.StorageProbe) -> str:
        """Why this ps cannot save where the controller looks; empty if it can."""
        if not left.path:  # a controller of an earlier version
            return ""

        try:
            probe.answer(StorageProbe(left.path, left.text), self._name)
        except InvalidSetting as error:
            return str(error)

        return ""

    def on_state(self, state: coordination_pb2.ClusterState) -> None:
        self._newest_epoch = max(self._newest_epoch, state.routing.epoch)
        # Until it has restored, this server must not answer for a map of its predecessor at the
        # same address. Once it is ready the controller makes a new map.
        is_routed = self._restored is not None and state.HasField("routing")
        current = codec.routing_from_proto(state.routing) if is_routed else None

        try:
            self._store.route(current, is_initialized=state.phase == coordination_pb2.PHASE_RUNNING)
        except WrongRun as error:
            self._exit_request.request(1, f"{error}; start this ps again")

    def on_save_shard(self, order: coordination_pb2.SaveShard) -> None:
        threading.Thread(target=self._save, args=(order,), name="save", daemon=True).start()

    def _save(self, order: coordination_pb2.SaveShard) -> None:
        answer = coordination_pb2.ShardSaved(save_id=order.save_id, pushes=self._store.pushes)
        try:
            written = self._saving.write(order, self._shard, self._cluster_num_ps)
            answer.files.extend(
                coordination_pb2.ShardFile(
                    name=file.name,
                    kind=file.kind,
                    table=file.table,
                    rows=file.rows,
                    bytes=file.bytes,
                    sha256=file.sha256,
                    buckets=file.buckets,
                    held=file.held,
                    through=file.through,
                    blocks=file.blocks,
                )
                for file in written.files
            )

            answer.parts.extend(written.parts)
            answer.layouts.update(written.layouts)
            is_full = not (order.HasField("increment") or order.dense_only)
            if self._expire_on_save and is_full:
                logger.info("expired with the save rows=%d", sum(self._store.expire().values()))
        except ChangesForgotten as error:
            answer.error = f"{self._name}: {error}"
            answer.changes_forgotten = True
            answer.changes_not_noted = isinstance(error, ChangesNotNoted)
            if not answer.changes_not_noted:  # the controller says once that there will be none
                logger.warning("no increment can be made: %s", error)
        except Exception as error:
            logger.exception("save failed directory=%s", order.directory)
            reason = stored.why(error, locate(order.directory))
            answer.error = f"{self._name}: {reason}"

        # So that the status beside a finished save counts the rows in it
        self._session.report_now()
        self._session.send(coordination_pb2.SessionRequest(shard_saved=answer))

    def on_shutdown(self, reason: str) -> None:
        if self._stay_up:
            logger.info("the job is over, and this server stays up: %s", reason)
        else:
            self._exit_request.request(0, reason)

    def on_lost(self, error: MegalithError) -> None:
        self._exit_request.request(1, str(error))


def _through(welcome: coordination_pb2.Welcome) -> int | None:
    """How many increments to load; None = all, as a controller of an earlier version means it."""
    return welcome.restore_increments if welcome.HasField("restore_increments") else None


def _choices_of(message: coordination_pb2.RestoreChoices) -> RestoreChoices:
    return RestoreChoices(
        left_out_tables=tuple(message.left_out_tables),
        clears_variables=message.clears_variables,
        keeps_step=message.keeps_step,
        old_names=dict(message.old_names),
        dense_from=message.dense_from,
    )
