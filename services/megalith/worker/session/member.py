"""A worker's side of its session with the controller."""

import logging
import threading
from collections.abc import Callable

from megalith.errors import MegalithError
from megalith.protos import common_pb2, coordination_pb2
from megalith.runtime.joining.lease import Lease
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.presence import Presence
from megalith.runtime.joining.session import ControllerSession
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.wire import codec
from megalith.worker.session.measuring import measure
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import BarrierHolds, ClusterPhase, ClusterView, KnownState

logger = logging.getLogger(__name__)

_PHASES = {
    coordination_pb2.PHASE_INITIALIZING: ClusterPhase.INITIALIZING,
    coordination_pb2.PHASE_RUNNING: ClusterPhase.RUNNING,
    coordination_pb2.PHASE_FINISHED: ClusterPhase.FINISHED,
}


class WorkerMember:
    """Reports progress, keeps the view of the cluster, hands the first welcome on."""

    def __init__(
        self,
        index: int,
        settings: MembershipSettings,
        presence: Presence,
        view: ClusterView,
        progress: Progress,
        lease: Lease,
        addresses: Callable[[], tuple[str, str]],
        begin: Callable[[coordination_pb2.Welcome], None],
        exit_request: ExitRequest,
    ) -> None:
        self._index = index
        self._view = view
        self._progress = progress
        self._addresses = addresses
        self._begin = begin
        self._exit_request = exit_request
        self._was_welcomed = threading.Event()
        self._run_id = ""
        self._newest_epoch = 0  # also under earlier controllers: a new one goes on above it
        self._session = ControllerSession(settings, self, presence, lease)
        # Called when the session was lost and is open again
        self.on_return: Callable[[], None] = lambda: None

    @property
    def incarnation(self) -> str:
        """What the controller knows this process by."""
        return self._session.incarnation

    def start(self) -> None:
        self._session.start()

    def stop(self) -> None:
        self._session.stop()

    def report_now(self) -> None:
        self._session.report_now()

    def register(self) -> coordination_pb2.Register:
        address, metrics_address = self._addresses()
        progress = self._progress.snapshot()
        state = self._view.state
        return coordination_pb2.Register(
            role=common_pb2.ROLE_WORKER,
            index=self._index,
            address=address,
            metrics_address=metrics_address,
            epoch=self._newest_epoch,
            initialized_epoch=progress.initialized_epoch,
            global_step=progress.global_step,
            first_step=state.first_step if state.positions else None,
            run_id=self._run_id,
        )

    def report(self) -> coordination_pb2.SessionRequest:
        report = codec.worker_report_to_proto(self._progress.snapshot())
        return coordination_pb2.SessionRequest(worker=report)

    def on_welcome(self, welcome: coordination_pb2.Welcome) -> None:
        if self._was_welcomed.is_set():  # back after a lost stream
            self.on_return()
            self._session.report_now()
            return

        self._was_welcomed.set()
        self._begin(welcome)

    def on_state(self, state: coordination_pb2.ClusterState) -> None:
        self._newest_epoch = max(self._newest_epoch, state.routing.epoch)
        self._run_id = self._run_id or state.routing.run_id
        was_running = self._view.state.phase is ClusterPhase.RUNNING
        self._view.update(_decode(state))
        if was_running and self._view.state.phase is not ClusterPhase.RUNNING:
            # A counter that went down with a ps starts again from what workers have seen.
            self._session.report_now()

    def on_standby(self) -> None:
        logger.warning("a worker does not stand by; ignored")

    def on_measure(self, order: coordination_pb2.Measure) -> None:
        threading.Thread(target=self._measure, args=(order,), name="measure", daemon=True).start()

    def _measure(self, order: coordination_pb2.Measure) -> None:
        try:
            rates = measure(order.addresses, order.seconds, lambda: self._view.is_stopping)
        except Exception:
            logger.exception("measuring failed order=%d", order.order)
            return

        answer = coordination_pb2.Measured(order=order.order, rows_per_s=rates)
        self._session.send(coordination_pb2.SessionRequest(measured=answer))

    def on_ask_report(self, order: int) -> None:
        # After the report: both go the same way, one behind the other
        self._session.report_now()
        answer = coordination_pb2.Reported(order=order)
        self._session.send(coordination_pb2.SessionRequest(reported=answer))

    def on_save_shard(self, order: coordination_pb2.SaveShard) -> None:
        logger.warning("a worker holds no shard; ignored save %s", order.save_id)

    def on_shutdown(self, reason: str) -> None:
        self._exit_request.request(0, reason)

    def on_lost(self, error: MegalithError) -> None:
        self._exit_request.request(1, str(error))


def _decode(state: coordination_pb2.ClusterState) -> KnownState:
    holders = state.barrier.holders
    barrier = BarrierHolds(
        newest=state.barrier.id,
        is_held=state.barrier.is_placed,
        actions=tuple((holder.id, holder.action) for holder in holders),
    )

    return KnownState(
        phase=_PHASES.get(state.phase, ClusterPhase.WAITING),
        epoch=state.routing.epoch,
        barrier=barrier,
        finished_workers=frozenset(state.finished_workers),
        positions=tuple(state.positions),
        global_step=state.global_step,
        first_step=state.first_step,
        is_saved=state.is_saved,
        cursors=tuple(state.cursors),
        first_cursors=tuple(state.first_cursors),
    )
