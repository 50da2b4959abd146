"""What `megalith ctl status` is told: everything that the controller knows, at one moment."""

import collections
import math
import time
from dataclasses import dataclass

from megalith.checkpoint.storage.probe import StorageProbe
from megalith.controller.codec import (
    encode_barrier,
    encode_candidate,
    encode_loss,
    encode_phase,
    encode_piece_counts,
    encode_replica,
    encode_save,
    encode_seat,
)
from megalith.controller.coordinator import Coordinator
from megalith.controller.job_end import JobEnding
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.replicas import Replicas
from megalith.controller.saving.increments import IncrementSaves
from megalith.controller.saving.permit import SavePermit
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import SaveSchedule, Unsaved
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.selection.formation import Formation
from megalith.protos.coordination_pb2 import GetStatusResponse


@dataclass(frozen=True, slots=True)
class RunStart:
    """How a run begins that starts at a step, for people.

    `input` is where its input begins, empty = at its start. `notes` are what it takes over of its
    checkpoint, if that is not all of it.
    """

    step: int = 0
    input: str = ""
    notes: tuple[str, ...] = ()


class About:
    """Where it serves what, and of which shape the job is. `address` is known once it serves."""

    def __init__(
        self,
        job: str,
        model_dir: str,
        num_ps: int,
        num_workers: int,
        num_spare_ps: int = 0,
        generation: int = 0,
        run_start: RunStart | None = None,
        checkpoint_dir: str = "",
        storage_probe: StorageProbe | None = None,
    ) -> None:
        self.job = job
        self.model_dir = model_dir
        self.checkpoint_dir = checkpoint_dir or model_dir
        self.storage_probe = storage_probe or StorageProbe("", "")
        self.num_ps = num_ps
        self.num_workers = num_workers
        self._num_spare_ps = num_spare_ps

        self.generation = generation
        self.run_start = run_start or RunStart()

        self.address = ""
        self.metrics_address = ""
        self.started_at = time.monotonic()

    @property
    def max_sessions(self) -> int:
        """Every seat twice, because a replacement overlaps with who it replaces; and strangers."""
        return 2 * (self.num_ps + self._num_spare_ps + self.num_workers) + 8


class StatusBoard:
    """Asks every part of the controller and puts their answers into one reply."""

    def __init__(
        self,
        about: About,
        coordinator: Coordinator,
        formation: Formation,
        saver: Saver,
        schedule: SaveSchedule,
        ending: JobEnding,
        unsaved: Unsaved,
        start_point: StartPoint,
        journal: JournalKeeper,
        replicas: Replicas,
        dense_saver: Saver,
        increments: IncrementSaves,
        permit: SavePermit,
    ) -> None:
        self._about = about
        self._coordinator = coordinator
        self._formation = formation
        self._saver = saver
        self._schedule = schedule
        self._ending = ending
        self._unsaved = unsaved
        self._start_point = start_point
        self._journal = journal
        self._replicas = replicas
        self._dense_saver = dense_saver
        self._increments = increments
        self._permit = permit

    def reply(self) -> GetStatusResponse:
        reply = GetStatusResponse()
        self._add_job(reply)
        self._add_members(reply)
        self._add_saves(reply)
        self._add_losses(reply)
        return reply

    def _add_job(self, reply: GetStatusResponse) -> None:
        reply.address = self._about.address
        reply.metrics_address = self._about.metrics_address
        reply.model_dir = self._about.model_dir

        reply.num_ps = self._about.num_ps
        reply.num_workers = self._about.num_workers
        reply.job = self._about.job
        reply.up_s = time.monotonic() - self._about.started_at

        reply.run_id = self._coordinator.run_id
        reply.journal_error = self._journal.error
        reply.ending = self._ending.said

        outcome = self._coordinator.outcome
        if outcome is not None:
            succeeded, reason = outcome
            reply.outcome = "succeeded" if succeeded else "failed"
            reply.reason = reason

    def _add_members(self, reply: GetStatusResponse) -> None:
        state = self._coordinator.state()
        reply.phase = encode_phase(state.phase)
        reply.barrier.CopyFrom(encode_barrier(state.barrier))
        reply.global_step = self._coordinator.global_step

        if state.first_step == self._about.run_start.step:  # not of a run that an earlier one began
            reply.input = self._about.run_start.input
            reply.start_notes.extend(self._about.run_start.notes)

        counts = self._coordinator.piece_counts()
        if counts is not None:
            reply.pieces.CopyFrom(encode_piece_counts(counts))

        num_buckets: collections.Counter[int] = collections.Counter()
        if state.routing is not None:
            reply.epoch = state.routing.epoch
            num_buckets.update(state.routing.owners.tolist())

        for seat, standing, silent_s in self._coordinator.seats():
            reply.members.append(encode_seat(seat, standing, silent_s, num_buckets))
            if seat.progress.results and not reply.results:
                reply.results.update(seat.progress.results)

        for candidate in self._formation.candidates():
            reply.candidates.append(encode_candidate(candidate))

        for heard in self._replicas.heard():
            reply.replicas.append(encode_replica(heard))

    def _add_saves(self, reply: GetStatusResponse) -> None:
        reply.last_checkpoint = str(self._start_point.newest or "")
        last = self._saver.last
        if last is not None:
            reply.last_save.CopyFrom(encode_save(last))

        last_dense = self._dense_saver.last
        if last_dense is not None:
            reply.last_dense_save.CopyFrom(encode_save(last_dense))

        trouble = self._increments.trouble
        if trouble is not None:
            reply.increment_error = trouble.error
            reply.increments_fail_since_s = trouble.since_s

        under_way = self._saver.progress()
        if under_way is not None:
            reply.saving.step = under_way.step
            reply.saving.seconds = under_way.seconds
            reply.saving.bytes = under_way.bytes
            reply.saving.rows = sum(member.ps.rows for member in reply.members)

        reply.checkpoints_removed = self._saver.num_removed
        now = time.monotonic()
        next_s = self._schedule.next_s(now)

        reply.next_save_s = max(0.0, next_s)
        if math.isinf(next_s):
            reply.next_save_s = -1.0  # none is planned by the clock

        reply.next_save_step = self._schedule.next_step
        reply.planned_saves_wait = self._permit.missing()
        if not reply.planned_saves_wait and next_s <= 0 and not self._unsaved.is_behind:
            reply.planned_saves_wait = "nothing was trained since the last one"

        reply.unsaved = self._unsaved.text()

    def _add_losses(self, reply: GetStatusResponse) -> None:
        rows_lost, losses = self._coordinator.losses()
        reply.rows_lost = rows_lost
        reply.pushes_unknown = self._coordinator.pushes_unknown
        reply.losses.extend(encode_loss(loss) for loss in losses)
