"""Composition root of the controller."""

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

from megalith.controller import journal, last_words, saves
from megalith.controller.action_file import ActionFile
from megalith.controller.barrier import HolderKind
from megalith.controller.config import ControllerConfig
from megalith.controller.coordinator import Coordinator
from megalith.controller.directives import Phase
from megalith.controller.ending import JobEnding
from megalith.controller.formation import Formation, Shape
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.journal import JournalKeeper
from megalith.controller.ownership import ModelDirOwnership
from megalith.controller.ps_list import PsListFile
from megalith.controller.roster import Patience, Role
from megalith.controller.saves import Saver, SaveRecord
from megalith.controller.schedule import SaveSchedule
from megalith.controller.servicer import About, ControllerServicer, CoordinationServicer
from megalith.controller.start_point import StartPoint
from megalith.controller.unsaved import Unsaved
from megalith.protos import controller_pb2_grpc, coordination_pb2_grpc
from megalith.runtime import application, lifecycle, liveness, manifest
from megalith.runtime.files import prepare_model_dir, write_atomically
from megalith.runtime.guard import guarded
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.presence import Presence, assigned
from megalith.runtime.server import RpcServer
from megalith.wire import controller_address
from megalith.wire.errors import MegalithError

logger = logging.getLogger(__name__)

_LINGER_S = 2.0  # longer than the poll of whoever watches the job, so that they see its outcome
_JOIN_S = 1.0  # for own threads; one that is inside a last save is left behind
_FORM_S = (
    0.5  # between two looks at what only time decides: vacant shards, answers that do not come
)
_PROGRESS_S = 5.0  # between two lines about parameter servers that are missing
_SCHEDULE_S = 0.5  # between two looks at whether a save is due, or possible
_STOP_HOLD_S = 30.0  # for workers to block before a stop by file lets them go to their end
_LEAVE_S = 1.0  # the same, when this process is told to stop
_ENDED = "the job has ended, its controller was stopped"
_DISMISS_S = 3.0  # for members to leave once they are told to


class ControllerServer:
    """The controller of one job."""

    def __init__(self, config: ControllerConfig, exit_request: ExitRequest) -> None:
        self._config, self._exit_request = config, exit_request
        self._model_dir = prepare_model_dir(config.model_dir)
        job = config.job or str(self._model_dir.absolute())
        self._ownership = ModelDirOwnership(self._model_dir, job)
        self._has_served = False
        try:
            self._construct(config, job)
        except BaseException:
            self._ownership.withdraw()
            raise

    def _construct(self, config: ControllerConfig, job: str) -> None:
        manifest.complete_list(self._model_dir)
        start_point = StartPoint(self._model_dir)
        checkpoint = start_point.find()
        newest = manifest.read(checkpoint) if checkpoint is not None else None
        step = newest.step if newest is not None else 0
        checkpoint_path = str(checkpoint.absolute()) if checkpoint is not None else ""
        if checkpoint is not None:
            logger.info("starting from checkpoint path=%s", checkpoint)
        self._journal = JournalKeeper(
            self._model_dir,
            lambda: self._coordinator.journal(),
            may_write=lambda: not self._ownership.is_replaced,
        )
        self._coordinator = Coordinator(
            config.num_ps,
            config.num_workers,
            patience=Patience(
                silence_s=config.silence_s,
                suspect_s=config.suspect_s,
                lost_worker_s=config.lost_worker_s,
                health_resume_s=config.health_resume_s,
            ),
            job=job,
            checkpoint_step=step,
            journal=journal.left_for(
                self._model_dir, job, (config.num_ps, config.num_workers), time.time()
            ),
            ended_runs=journal.ended_runs(self._model_dir),
            wake_journal=self._journal.wake,
            flush_journal=self._journal.flush,
            restore_fault=start_point.fault,
            check_current=self._ownership.check,
            find_alive=lambda addresses: liveness.probe(addresses).alive,
        )
        if newest is not None:
            self._coordinator.checkpoint_saved(checkpoint_path, newest.saved_at_s)
        self._schedule = SaveSchedule(
            config.save_every_s, config.save_every_steps, time.monotonic(), step
        )
        self._saver = Saver(
            self._coordinator,
            self._model_dir,
            config.save_timeout_s,
            config.save_hold_s,
            on_saved=self._on_saved,
            start_point=start_point,
        )
        self._unsaved = Unsaved(self._coordinator, checkpoint_path, step)
        self._ending = JobEnding(
            self._coordinator, self._saver, self._unsaved, config.final_save_timeout_s
        )
        self._action_file = ActionFile(self._model_dir, self._saver.save, self._stop_training)
        self._about = About(
            str(self._model_dir.absolute()),
            config.num_ps,
            config.num_workers,
            config.num_extra_ps + config.num_redundant_ps,
            self._ownership.generation,
        )
        self._formation = Formation(
            Shape(
                num_ps=config.num_ps,
                num_extra_ps=config.num_extra_ps,
                num_redundant_ps=config.num_redundant_ps,
                num_workers=config.num_workers,
                benchmark_s=config.benchmark_s,
                takeover_s=config.takeover_s,
                override=config.ps_override,
            ),
            PsListFile(self._model_dir, config.job),
            self._coordinator.order_measurement,
        )
        controller = ControllerServicer(self._coordinator, self._saver)
        coordination = CoordinationServicer(
            self._coordinator,
            self._formation,
            self._saver,
            self._schedule,
            self._about,
            self._ending,
            self._unsaved,
            start_point,
            self._journal,
        )
        metrics = Metrics()
        self._job_metrics = JobMetrics(
            metrics, self._coordinator, config.job or self._model_dir.name, self._num_left_ps
        )
        self._rpc = RpcServer(
            config.server,
            metrics,
            {
                "Controller": lambda server: controller_pb2_grpc.add_ControllerServicer_to_server(
                    controller, server
                ),
                "megalith.v1.Coordination": lambda server: (
                    coordination_pb2_grpc.add_CoordinationServicer_to_server(coordination, server)
                ),
            },
            extra_threads=self._about.max_sessions,
        )
        discovery = config.discovery.open(config.job, config.model_dir)
        if discovery is not None and config.clear_discovery:
            discovery.deregister_all()
        self._presence = Presence("controller", 0, discovery, "", config.model_dir)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch_members, name="member-watch", daemon=True),
            threading.Thread(target=self._save_last, name="last-save", daemon=True),
            threading.Thread(target=self._finish_job, name="job-end", daemon=True),
            threading.Thread(target=self._form, name="formation", daemon=True),
            threading.Thread(target=self._save_on_schedule, name="save-schedule", daemon=True),
            threading.Thread(target=self._look_for_actions, name="action-file", daemon=True),
        ]

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        try:
            self._serve()
        except BaseException:
            self.stop(0)
            self._ownership.withdraw()
            raise

    def _serve(self) -> None:
        self._rpc.start()
        self._presence.check_alone(self.address)
        saves.remove_leftovers(self._model_dir)
        self._about.address = self.address
        write_atomically(self._model_dir / controller_address.FILE_NAME, self.address.encode())
        self._journal.start()
        self._say_last_words()
        for thread in self._threads:
            thread.start()
        self._presence.announce(self.address)
        self._rpc.set_serving(True)
        self._has_served = True
        logger.info(
            "controller serving address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._coordinator.wake()
        self._rpc.set_serving(False)
        if self._coordinator.outcome is None and (unsaved := self._unsaved.text()):
            logger.warning("stopped before the end of the job; not saved: %s", unsaved)
            if self._is_starter_gone():
                last_words.leave(
                    self._model_dir,
                    f"the job before this one died with the process that ran it; not saved: {unsaved}",
                )
        is_ended = self._is_job_ended()
        is_over = is_ended or not self._coordinator.has_members
        self._formation.dismiss(_ENDED if is_ended else "")
        if is_ended:
            self._coordinator.dismiss(_ENDED, _LEAVE_S)
            journal.record_ended(self._model_dir, self._coordinator.run_id)
        self._coordinator.end_sessions()
        self._rpc.stop(grace_s)
        self._journal.stop(is_over=is_over)
        self._presence.stop()
        if controller_address.read(self._model_dir) == self.address:
            (self._model_dir / controller_address.FILE_NAME).unlink(missing_ok=True)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)
        self._ownership.release()

    def _is_job_ended(self) -> bool:
        """Whether members are to exit with this controller; otherwise they look for the next one.

        Whoever started this process and keeps its standard input, `megalith up`, starts no other controller.
        """
        if not self._has_served or self._ownership.is_replaced:
            return False
        return self._coordinator.outcome is not None or self._config.server.exit_with_stdin

    def _is_starter_gone(self) -> bool:
        """Whether whoever would have said why this process ends has died: then nobody asked it to stop."""
        is_asked = self._exit_request.status != 0  # by a signal, or by a newer controller
        return self._has_served and self._config.server.exit_with_stdin and not is_asked

    def _say_last_words(self) -> None:
        """Count what the controller before this one could tell nobody among the losses."""
        if text := last_words.read(self._model_dir):
            self._coordinator.add_loss(text)
            self._journal.flush()
            last_words.forget(self._model_dir)

    def _watch_members(self) -> None:
        every_s = min(1.0, self._config.silence_s / 4, self._config.suspect_s / 4)
        looks = (
            guarded("looking for a newer controller", self._step_down_if_replaced),
            guarded("watching members", self._coordinator.watch),
            guarded("job metrics", self._job_metrics.watch),
        )
        while not self._stopping.wait(every_s):
            for look in looks:
                look()

    def _step_down_if_replaced(self) -> None:
        """Leave the job to a controller that was started while this one seemed dead."""
        if self._ownership.is_replaced:
            self._exit_request.request(1, self._ownership.replacement)

    def _form(self) -> None:
        """Choose parameter servers, and say how many are still missing."""
        next_line, advance = 0.0, guarded("choosing parameter servers", self._formation.advance)
        while not self._stopping.is_set():
            advance()
            if self._coordinator.state().phase is Phase.FORMING and time.monotonic() >= next_line:
                left = self._num_left_ps()
                logger.info(
                    "Got %d ps, %d left!",
                    self._config.num_ps + self._config.num_extra_ps - left,
                    left,
                )
                next_line = time.monotonic() + _PROGRESS_S
            self._formation.wait_for_change(_FORM_S)

    def _num_left_ps(self) -> int:
        """Parameter servers that are waited for."""
        if self._formation.is_selective:
            return self._formation.num_left
        return sum(
            place.role is Role.PS and not place.is_connected
            for place, _, _ in self._coordinator.places()
        )

    def _save_on_schedule(self) -> None:
        save_if_due = guarded("the planned save", self._save_if_due)
        while not self._stopping.wait(_SCHEDULE_S):
            save_if_due()

    def _save_if_due(self) -> None:
        is_running = self._coordinator.state().phase is Phase.RUNNING
        if is_running and self._schedule.is_due(time.monotonic(), self._coordinator.global_step):
            try:
                self._saver.save()
            except MegalithError as error:
                logger.warning("the planned save failed, the next one is planned: %s", error)

    def _look_for_actions(self) -> None:
        every_s, look = (
            self._config.action_poll_s,
            guarded("looking for an action", self._action_file.look),
        )
        while every_s and not self._stopping.wait(every_s):
            look()

    def _stop_training(self) -> None:
        """Have every worker end its share: at the barrier it hears the action, and ends once it is let go."""
        self._coordinator.hold("Stop", "monolith_action", _STOP_HOLD_S, HolderKind.OPERATOR)()

    def _on_saved(self, record: SaveRecord) -> None:
        self._job_metrics.saved(record)
        if not record.is_own:
            return  # a copy for somebody else: this job, and a ps that is replaced, do not start from it
        self._schedule.restart(time.monotonic(), record.step)
        if not record.error:
            path = str(Path(record.path).absolute())
            self._unsaved.saved(path, record.step)
            self._coordinator.checkpoint_saved(path, record.ended_at_s, record.pushes)

    def _save_last(self) -> None:
        """The last save and the outcome."""
        guarded("the end of the job", lambda: self._ending.run(self._stopping.is_set))()

    def _finish_job(self) -> None:
        """When there is an outcome: everyone's leave."""
        if not self._coordinator.wait_until_ended(self._stopping.is_set):
            return
        self._journal.flush()  # first: once members are gone, only the journal says that the job has ended
        succeeded, reason = self._coordinator.outcome or (False, "stopped")
        for say in (
            lambda: self._formation.dismiss(reason),
            lambda: self._coordinator.dismiss(reason, _DISMISS_S),
            lambda: application.report_outcome(succeeded, reason),
        ):
            guarded("the leave", say)()  # whatever goes wrong with it, this process ends
        if not self._config.stay_up:
            self._stopping.wait(_LINGER_S)
            self._exit_request.request(0 if succeeded else 1, reason)


def _as_assigned(config: ControllerConfig) -> ControllerConfig:
    _, server = assigned("controller", 0, config.server, config.discovery)
    return replace(config, server=server)


def run(config: ControllerConfig) -> int:
    """Serve until told to stop or the job has ended; returns the exit status."""
    return lifecycle.run(
        "controller",
        lambda exit_request: ControllerServer(_as_assigned(config), exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
