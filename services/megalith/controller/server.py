"""Composition root of the controller."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.format import DENSE_ONLY
from megalith.checkpoint.storage import probe
from megalith.control import address_file
from megalith.controller.action_file import REQUEST, ActionFile
from megalith.controller.config import ControllerConfig
from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.job_end import JobEnding, JobLeave
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.job_start import JobStart, find_start
from megalith.controller.last_words import LastWords
from megalith.controller.members import job_files, journal_file
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.roster import Patience
from megalith.controller.members.session import SessionHost
from megalith.controller.ownership import ModelDirOwnership
from megalith.controller.replicas import Replicas
from megalith.controller.saving import checkpoint_dir, dense_only, leftovers
from megalith.controller.saving.dense_only import DenseOnlyNews
from megalith.controller.saving.increments import IncrementSaves
from megalith.controller.saving.permit import SavePermit
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.saved_input import SavedInput
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import SaveNews, SaveSchedule, ScheduledSaves, Unsaved
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.tide import Tide
from megalith.controller.selection.formation import Formation
from megalith.controller.selection.offers import Shape
from megalith.controller.selection.ps_list import PsListFile
from megalith.controller.servicer import ControllerServicer, CoordinationServicer
from megalith.controller.status import About, RunStart, StatusBoard
from megalith.controller.step_files import StepFiles
from megalith.controller.watches import Forming, MemberWatch
from megalith.discovery import liveness
from megalith.protos import controller_pb2_grpc, coordination_pb2_grpc
from megalith.runtime.files import prepare_model_dir, write_atomically
from megalith.runtime.joining.presence import Presence, assigned
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.process import lifecycle
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.rpc.server import RpcServer

logger = logging.getLogger(__name__)

_JOIN_S = 1.0  # for own threads; one that is inside a last save is left behind


class ControllerServer:
    """The controller of one job."""

    def __init__(self, config: ControllerConfig, exit_request: ExitRequest) -> None:
        self._config = config
        self._exit_request = exit_request
        self._model_dir = prepare_model_dir(config.model_dir)
        checkpoint_dir.check_model_dir(self._model_dir)
        job = config.job or str(self._model_dir.absolute())
        self._ownership = ModelDirOwnership(self._model_dir, job)

        try:
            self._construct(config, job)
        except BaseException:
            self._ownership.withdraw()
            raise

    def _construct(self, config: ControllerConfig, job: str) -> None:
        directory = checkpoint_dir.take(self._model_dir, config.checkpoint_dir, config.restore_dir)
        self._stopping = threading.Event()
        self._checkpoint_dir = directory.absolute()
        start_point = StartPoint(self._checkpoint_dir)
        start = find_start(self._checkpoint_dir, config, start_point)
        self._storage_probe = probe.leave(self._checkpoint_dir)
        self._about = About(
            job,
            str(self._model_dir.absolute()),
            config.num_ps,
            config.num_workers,
            config.num_extra_ps + config.num_redundant_ps,
            self._ownership.generation,
            RunStart(start.step, start.said_of_input, start.notes),
            str(self._checkpoint_dir),
            self._storage_probe,
        )

        self._make_members(config, job, start, start_point)
        self._make_metrics(config)
        self._make_saving(config, start, start_point)
        self._make_rpc(config, start_point)
        self._make_presence(config)
        watches = self._watches(config)
        saves = self._saves(config)
        orders = self._orders_by_file(config)
        self._threads = [*watches, *saves, *orders]

    def _make_members(
        self, config: ControllerConfig, job: str, start: JobStart, start_point: StartPoint
    ) -> None:
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
            patience=_patience(config),
            job=job,
            checkpoint_step=start.step,
            first_cursors=start.cursors,
            journal=journal_file.left_for(self._model_dir, job, shape, time.time()),
            ended_runs=job_files.ended_runs(self._model_dir),
            wake_journal=self._journal.wake,
            flush_journal=self._journal.flush,
            restore_fault=start_point.fault,
            check_current=self._ownership.check,
            find_alive=lambda addresses: liveness.probe(addresses).alive,
        )

        if start.checkpoint:
            self._coordinator.checkpoint_saved(start.checkpoint, start.saved_at_s)

        self._formation = Formation(
            _selection_shape(config),
            PsListFile(self._model_dir, config.job),
            self._coordinator.order_measurement,
        )
        num_awaited = config.num_ps + config.num_extra_ps
        self._forming = Forming(self._coordinator, self._formation, num_awaited)

    def _make_metrics(self, config: ControllerConfig) -> None:
        self._metrics = Metrics()
        model_name = config.job or self._model_dir.name
        self._job_metrics = JobMetrics(
            self._metrics,
            self._coordinator,
            model_name,
            self._forming.num_left_ps,
        )

    def _make_saving(
        self, config: ControllerConfig, start: JobStart, start_point: StartPoint
    ) -> None:
        self._schedule = SaveSchedule(
            config.save_every_s,
            config.save_every_steps,
            time.monotonic(),
            start.step,
            Tide.parse(config.tide_window, config.tide_save_s),
            first_s=0.0 if start.checkpoint else config.increment_every_s,
        )
        self._permit = SavePermit(self._model_dir, config.save_hours(), config.save_only_online)
        self._unsaved = Unsaved(
            self._coordinator,
            start.checkpoint,
            start.step,
            start.num_increments,
        )
        self._news = SaveNews(self._coordinator, self._schedule, self._unsaved, self._job_metrics)
        retention = Retention(config.max_to_keep, config.keep_every_n_hours, time.time())
        self._saver = Saver(
            self._coordinator,
            self._checkpoint_dir,
            config.save_timeout_s,
            config.save_hold_s,
            on_saved=self._on_saved,
            start_point=start_point,
            keeps_cursors=config.input_cursors,
            input_name=start.input_name,
            at_start=SavedInput(start.cursors, start.step, start.repeated_batches),
            retention=retention,
        )

        self._dense_schedule = SaveSchedule(
            config.dense_save_every_s,
            config.dense_save_every_steps,
            time.monotonic(),
            start.step,
        )
        self._dense_news = DenseOnlyNews(self._coordinator, self._dense_schedule, self._job_metrics)
        self._dense_saver = Saver(
            self._coordinator,
            self._checkpoint_dir / DENSE_ONLY,
            config.save_timeout_s,
            config.save_hold_s,
            on_saved=self._dense_news.tell,
            retention=retention,
            beside=self._saver,
        )

        self._increments = IncrementSaves(
            self._coordinator,
            self._saver,
            start_point,
            self._unsaved,
            self._job_metrics.increments,
            self._checkpoint_dir,
            config.increment_every_s,
        )

        self._ending = JobEnding(
            self._coordinator,
            self._saver,
            self._unsaved,
            config.final_save_timeout_s,
        )
        self._last_words = LastWords(
            self._model_dir,
            self._coordinator,
            self._formation,
            self._journal,
            self._ownership,
            self._unsaved,
            self._exit_request,
            dies_with_starter=config.server.exit_with_stdin,
        )

    def _make_rpc(self, config: ControllerConfig, start_point: StartPoint) -> None:
        replicas = Replicas(config.job)
        board = StatusBoard(
            self._about,
            self._coordinator,
            self._formation,
            self._saver,
            self._schedule,
            self._ending,
            self._unsaved,
            start_point,
            self._journal,
            replicas,
            self._dense_saver,
            self._increments,
            self._permit,
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
            self._coordinator,
            host,
            self._saver,
            self._ending,
            board,
            self._about,
            replicas,
        )
        self._rpc = RpcServer(
            config.server,
            self._metrics,
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

    def _make_presence(self, config: ControllerConfig) -> None:
        discovery = config.discovery.open(config.job, config.model_dir)
        if discovery is not None and config.clear_discovery:
            discovery.deregister_all()

        self._presence = Presence("controller", 0, discovery, "", config.model_dir)

    def _watches(self, config: ControllerConfig) -> list[threading.Thread]:
        """Who is here, and when the job is over."""
        watch = MemberWatch(
            self._coordinator,
            self._ownership,
            self._job_metrics,
            self._exit_request,
            _patience(config),
        )
        leave = JobLeave(
            self._coordinator,
            self._formation,
            self._journal,
            self._exit_request,
            config.stay_up,
        )
        last_save = guarded("the end of the job", lambda: self._ending.run(self._stopping.is_set))

        return [
            self._thread("member-watch", watch.run, self._stopping),
            self._thread("last-save", last_save),
            self._thread("job-end", leave.run, self._stopping),
            self._thread("formation", self._forming.run, self._stopping),
        ]

    def _saves(self, config: ControllerConfig) -> list[threading.Thread]:
        """What is saved on a schedule."""
        whole = ScheduledSaves(
            self._coordinator,
            self._saver,
            self._schedule,
            is_wanted=lambda: self._unsaved.is_behind and self._permit.is_given(),
        )
        dense = ScheduledSaves(
            self._coordinator,
            self._dense_saver,
            self._dense_schedule,
            "the dense-only save",
            config.dense_only_hold,
            lambda: self._dense_news.is_wanted() and self._permit.is_given(),
        )

        return [
            self._thread("save-schedule", whole.run, self._stopping),
            self._thread("dense-only", dense.run, self._stopping),
            self._thread("increments", self._increments.run, self._stopping),
        ]

    def _orders_by_file(self, config: ControllerConfig) -> list[threading.Thread]:
        """What files in the model directory ask for."""
        save = self._saver.save
        stop = self._ending.stop_training
        action_file = ActionFile(self._model_dir, save, lambda: stop(REQUEST))
        step_files = StepFiles(
            self._model_dir,
            self._coordinator.global_step,
            step=lambda: self._coordinator.global_step,
            req_time_s=lambda: self._coordinator.newest_req_time_s,
            save=save,
            stop=stop,
        )

        poll_s = config.action_poll_s
        return [
            self._thread("action-file", action_file.run, self._stopping, poll_s),
            self._thread("step-files", step_files.run, self._stopping, poll_s > 0),
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
        leftovers.remove_leftovers(self._checkpoint_dir)
        if self._config.saves_dense_only:
            dense_only.prepare(self._checkpoint_dir / DENSE_ONLY)

        self._about.address = self.address
        self._about.metrics_address = self._rpc.metrics_address
        write_atomically(self._model_dir / address_file.CONTROLLER.name, self.address.encode())
        self._journal.start()
        self._last_words.read()
        for thread in self._threads:
            thread.start()

        self._presence.announce(self.address)
        self._rpc.set_serving(True)
        self._last_words.has_served = True
        logger.info(
            "controller serving address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._coordinator.wake()
        self._rpc.set_serving(False)

        is_over = self._last_words.say()
        self._coordinator.end_sessions()
        self._rpc.stop(grace_s)
        self._journal.stop(is_over=is_over)
        self._presence.stop()
        if address_file.CONTROLLER.read(self._model_dir) == self.address:
            (self._model_dir / address_file.CONTROLLER.name).unlink(missing_ok=True)

        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)

        probe.take_back(self._storage_probe)
        self._ownership.release()


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
