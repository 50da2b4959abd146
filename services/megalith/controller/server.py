"""Composition root of the controller."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from megalith.checkpoint import catalog, exempt_list, increments, override
from megalith.checkpoint.retention import Retention
from megalith.control import address_file
from megalith.controller.action_file import ActionFile
from megalith.controller.config import ControllerConfig
from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.job_end import JobEnding, JobLeave
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.members import job_files, journal_file
from megalith.controller.members.barrier import HolderKind
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.roster import Patience
from megalith.controller.members.session import SessionHost
from megalith.controller.ownership import ModelDirOwnership
from megalith.controller.saving import leftovers, saved_input
from megalith.controller.saving.increments import IncrementSaves
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import SaveNews, SaveSchedule, ScheduledSaves, Unsaved
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.tide import TideWindow
from megalith.controller.selection.formation import Formation
from megalith.controller.selection.offers import Shape
from megalith.controller.selection.ps_list import PsListFile
from megalith.controller.servicer import ControllerServicer, CoordinationServicer
from megalith.controller.status import About, InputStart, StatusBoard
from megalith.controller.watches import Forming, MemberWatch
from megalith.discovery import liveness
from megalith.protos import controller_pb2_grpc, coordination_pb2_grpc
from megalith.runtime import lifecycle
from megalith.runtime.files import prepare_model_dir, write_atomically
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.presence import Presence, assigned
from megalith.runtime.server import RpcServer

logger = logging.getLogger(__name__)

_JOIN_S = 1.0  # for own threads; one that is inside a last save is left behind
_STOP_HOLD_S = 30.0  # for workers to block before a stop by file lets them go to their end
_LEAVE_S = 1.0  # for members to leave when this process is told to stop
_ENDED = "the job has ended, its controller was stopped"


class ControllerServer:
    """The controller of one job."""

    def __init__(self, config: ControllerConfig, exit_request: ExitRequest) -> None:
        self._config = config
        self._exit_request = exit_request
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
        catalog.complete_list(self._model_dir)
        override.apply(self._model_dir, config.restore_ckpt, config.restore_dir)
        catalog.recover_list(self._model_dir)
        exempt_list.create(self._model_dir)
        start_point = StartPoint(self._model_dir)
        checkpoint = start_point.find()
        chain = increments.read_chain(checkpoint) if checkpoint is not None else None
        step = chain.last.step if chain is not None else 0
        num_increments = chain.number if chain is not None else 0
        checkpoint_path = str(checkpoint.absolute()) if checkpoint is not None else ""
        first_cursors: tuple[bytes, ...] = ()
        said_of_input = ""
        if chain is not None and checkpoint is not None and config.input_cursors:
            first_cursors, said_of_input = saved_input.start_of(
                chain.last, checkpoint, config.input_name
            )

        if chain is not None:
            logger.info("starting from checkpoint path=%s increments=%d", checkpoint, chain.number)

        patience = _patience(config)
        self._journal = JournalKeeper(
            self._model_dir,
            lambda: self._coordinator.journal(),
            may_write=lambda: not self._ownership.is_replaced,
            generation=self._ownership.generation,
        )

        shape = (config.num_ps, config.num_workers)
        self._coordinator = Coordinator(
            config.num_ps,
            config.num_workers,
            patience=patience,
            job=job,
            checkpoint_step=step,
            first_cursors=first_cursors,
            journal=journal_file.left_for(self._model_dir, job, shape, time.time()),
            ended_runs=job_files.ended_runs(self._model_dir),
            wake_journal=self._journal.wake,
            flush_journal=self._journal.flush,
            restore_fault=start_point.fault,
            check_current=self._ownership.check,
            find_alive=lambda addresses: liveness.probe(addresses).alive,
        )

        if chain is not None:
            self._coordinator.checkpoint_saved(checkpoint_path, chain.last.saved_at_s)

        self._formation = Formation(
            _selection_shape(config),
            PsListFile(self._model_dir, config.job),
            self._coordinator.order_measurement,
        )

        num_awaited = config.num_ps + config.num_extra_ps
        forming = Forming(self._coordinator, self._formation, num_awaited)
        metrics = Metrics()
        model_name = config.job or self._model_dir.name
        job_metrics = JobMetrics(metrics, self._coordinator, model_name, forming.num_left_ps)

        tide = TideWindow.parse(config.tide_window, config.tide_save_s)
        schedule = SaveSchedule(
            config.save_every_s, config.save_every_steps, time.monotonic(), step, tide
        )
        self._unsaved = Unsaved(self._coordinator, checkpoint_path, step, num_increments)
        self._news = SaveNews(self._coordinator, schedule, self._unsaved, job_metrics)
        self._saver = Saver(
            self._coordinator,
            self._model_dir,
            config.save_timeout_s,
            config.save_hold_s,
            on_saved=self._on_saved,
            start_point=start_point,
            keeps_cursors=config.input_cursors,
            input_name=config.input_name,
            retention=Retention(config.max_to_keep, config.keep_every_n_hours, time.time()),
        )

        self._increments = IncrementSaves(
            self._coordinator,
            self._saver,
            start_point,
            self._unsaved,
            job_metrics.increments,
            self._model_dir,
            config.increment_every_s,
        )

        ending = JobEnding(
            self._coordinator, self._saver, self._unsaved, config.final_save_timeout_s
        )

        self._about = About(
            job,
            str(self._model_dir.absolute()),
            config.num_ps,
            config.num_workers,
            config.num_extra_ps + config.num_redundant_ps,
            self._ownership.generation,
            InputStart(step, said_of_input),
        )

        board = StatusBoard(
            self._about,
            self._coordinator,
            self._formation,
            self._saver,
            schedule,
            ending,
            self._unsaved,
            start_point,
            self._journal,
        )

        host = SessionHost(
            self._coordinator,
            self._formation,
            self._saver,
            start_point,
            self._about.max_sessions,
        )

        controller = ControllerServicer(self._coordinator, self._saver)
        coordination = CoordinationServicer(
            self._coordinator, host, self._saver, ending, board, self._about
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
        watch = MemberWatch(
            self._coordinator, self._ownership, job_metrics, self._exit_request, patience
        )
        leave = JobLeave(
            self._coordinator, self._formation, self._journal, self._exit_request, config.stay_up
        )
        saves_on_schedule = ScheduledSaves(self._coordinator, self._saver, schedule)
        action_file = ActionFile(self._model_dir, self._saver.save, self._stop_training)
        last_save = guarded("the end of the job", lambda: ending.run(self._stopping.is_set))
        self._threads = [
            self._thread("member-watch", watch.run, self._stopping),
            self._thread("last-save", last_save),
            self._thread("job-end", leave.run, self._stopping),
            self._thread("formation", forming.run, self._stopping),
            self._thread("save-schedule", saves_on_schedule.run, self._stopping),
            self._thread("increments", self._increments.run, self._stopping),
            self._thread("action-file", action_file.run, self._stopping, config.action_poll_s),
        ]

    def _on_saved(self, record: SaveRecord) -> None:
        self._news.tell(record)
        self._increments.saved(record)

    @staticmethod
    def _thread(name: str, run: Callable[..., None], *arguments: object) -> threading.Thread:
        return threading.Thread(target=run, args=arguments, name=name, daemon=True)

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
        leftovers.remove_leftovers(self._model_dir)
        self._about.address = self.address
        self._about.metrics_address = self._rpc.metrics_address
        write_atomically(self._model_dir / address_file.CONTROLLER.name, self.address.encode())
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
                job_files.leave_last_words(
                    self._model_dir,
                    "the job before this one died with the process that ran it; "
                    f"not saved: {unsaved}",
                )

        is_ended = self._is_job_ended()
        is_over = is_ended or self._coordinator.knows_nothing
        self._formation.dismiss(_ENDED if is_ended else "")
        if is_ended:
            self._coordinator.dismiss(_ENDED, _LEAVE_S)
            job_files.record_ended_run(self._model_dir, self._coordinator.run_id)

        self._coordinator.end_sessions()
        self._rpc.stop(grace_s)
        self._journal.stop(is_over=is_over)
        self._presence.stop()
        if address_file.CONTROLLER.read(self._model_dir) == self.address:
            (self._model_dir / address_file.CONTROLLER.name).unlink(missing_ok=True)

        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)

        self._ownership.release()

    def _is_job_ended(self) -> bool:
        """Whether members are to exit with this controller; otherwise they look for the next one.

        Whoever started this process and keeps its standard input, `megalith up`, starts no other
        controller.
        """
        if not self._has_served or self._ownership.is_replaced:
            return False

        return self._coordinator.outcome is not None or self._config.server.exit_with_stdin

    def _is_starter_gone(self) -> bool:
        """Whether whoever would have said why this process ends has died.

        Then nobody asked it to stop.
        """
        is_asked = self._exit_request.status != 0  # by a signal, or by a newer controller
        return self._has_served and self._config.server.exit_with_stdin and not is_asked

    def _say_last_words(self) -> None:
        """Count what the controller before this one could tell nobody among the losses."""
        if text := job_files.last_words(self._model_dir):
            self._coordinator.add_loss(text)
            self._journal.flush()
            job_files.forget_last_words(self._model_dir)

    def _stop_training(self) -> None:
        """Have every worker end its share: it hears of that while it is held."""
        self._coordinator.hold("Stop", "monolith_action", _STOP_HOLD_S, HolderKind.ACTION)()


def _patience(config: ControllerConfig) -> Patience:
    return Patience(
        silence_s=config.silence_s,
        suspect_s=config.suspect_s,
        lost_worker_s=config.lost_worker_s,
        health_resume_s=config.health_resume_s,
    )


def _selection_shape(config: ControllerConfig) -> Shape:
    return Shape(
        num_ps=config.num_ps,
        num_extra_ps=config.num_extra_ps,
        num_redundant_ps=config.num_redundant_ps,
        num_workers=config.num_workers,
        benchmark_s=config.benchmark_s,
        takeover_s=config.takeover_s,
        override=config.ps_override,
    )


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
