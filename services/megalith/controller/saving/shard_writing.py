"""Having every ps write its shard: the order, the answers, and whether they are the whole model."""

import threading
import time
from dataclasses import replace

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Link, Manifest, ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.controller.coordinator import Coordinator
from megalith.controller.members.directives import SaveShard
from megalith.controller.saving import whole_model
from megalith.controller.saving.saved_input import SavedInput
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import (
    ChangesForgotten,
    ChangesNotNoted,
    SaveFailed,
    SaveTimedOut,
    ShardLost,
)

_LOOK_S = 0.1  # between two looks at files
_REPORT_S = 1.0  # for the reports of all workers; one that hangs holds up each save so long


class ShardWriting:
    """One save at a time: whoever has shards written holds `turn`.

    `_answered` guards what the sessions of the current save have answered.
    `appear_s` is how long the files of other machines may take to be seen here. The run began
    with the input `at_start`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        timeout_s: float,
        appear_s: float,
        keeps_cursors: bool = True,
        input_name: str = "",
        at_start: SavedInput | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._keeps_cursors = keeps_cursors
        self._input_name = input_name
        self._at_start = at_start or SavedInput()
        self._timeout_s = timeout_s
        self._appear_s = appear_s
        self.turn = threading.Lock()
        self._answered = threading.Condition()
        self._save_id = ""
        self._answers: dict[int, ShardSaved] = {}

    def newest_step(self) -> int:
        """The global step, and from now on the cursors, of this moment.

        Without asking they are those of the last reports, which may be a second old.
        """
        self._coordinator.ask_for_reports(_REPORT_S)
        return self._coordinator.global_step

    def write(
        self,
        folder: Location,
        step: int,
        save_id: str,
        began_at_s: float,
        link: Link | None = None,
        *,
        dense_only: bool = False,
    ) -> Manifest:
        """Have every ps write its files into `folder`, and the manifest after them.

        With a `link` they write only what changed since what it names. ChangesForgotten if one of
        them cannot tell, ChangesNotNoted if none ever will. If `dense_only` they write their
        variables alone.
        """
        # Before the order: what is trained from now on may be in the rows or not.
        keeps_cursors = self._keeps_cursors and not dense_only
        taken = SavedInput.taken_from(self._coordinator) if keeps_cursors else SavedInput()
        num_moving = len(self._coordinator.moving_workers())
        order = SaveShard(
            save_id,
            str(folder),
            step,
            dense_only=dense_only,
            timeout_s=self._timeout_s,
        )
        if link is not None:
            order = replace(order, base=link.base, number=link.number)

        with self._answered:
            self._save_id = save_id
            self._answers = {}

        sessions = self._coordinator.order_save(order)
        shards = self._collect(sessions)
        self._check_whole(shards)
        files: list[ShardFile] = []
        for shard in shards.values():
            files += shard.files

        if dense_only:
            _check_variables_alone(files)

        self._check_files(folder, files)
        last_step = self.newest_step() if num_moving else self._coordinator.global_step
        # A worker may have been in a step that it had not reported when the cursors were taken.
        repeated = max(last_step - taken.step, num_moving)
        if taken.cursors == self._at_start.cursors:
            repeated += self._at_start.repeated

        saved = Manifest(
            step=step,
            num_ps=len(sessions),
            saved_at_s=began_at_s,
            files=tuple(files),
            cursors=taken.texts,
            input_name=self._input_name if taken.texts else "",
            repeated_batches=repeated if taken.texts else 0,
            save_id=save_id,
            link=link,
            dense_only=dense_only,
        )
        manifest.write(folder, saved)
        return saved

    def _check_files(self, folder: Location, files: list[ShardFile]) -> None:
        """SaveFailed unless each file is here, with the size that its ps says.

        A ps that does not share this directory writes elsewhere. Network file systems may show a
        file a moment late.
        """
        deadline = time.monotonic() + self._appear_s
        while True:
            sizes = stored.sizes_in(folder)
            wrong = [file for file in files if sizes.get(file.name) != file.bytes]
            if not wrong:
                return

            if time.monotonic() > deadline:
                raise SaveFailed(_said_of(folder, wrong[0], sizes.get(wrong[0].name)))

            time.sleep(_LOOK_S)

    def _check_whole(self, shards: dict[int, ShardSaved]) -> None:
        """SaveFailed for a table that some ps lacks, and for a variable that lacks a part."""
        missing = whole_model.missing_in(shards, self._coordinator.index_of)
        if missing:
            raise SaveFailed(
                f"the model is not whole: {'; '.join(missing)}. A ps that was replaced lacks what "
                "was created since the checkpoint that it started from. Create it again, which "
                "keeps what exists elsewhere: call create_tables and create_variables, or restart "
                "the chief. Then save again; the previous checkpoint stands"
            )

    def answer(self, session: int, saved: ShardSaved) -> None:
        """A ps is done with its shard; an answer to an older save is ignored."""
        with self._answered:
            if saved.save_id == self._save_id:
                self._answers[session] = saved
                self._answered.notify_all()

    def _collect(self, sessions: list[int]) -> dict[int, ShardSaved]:
        deadline = time.monotonic() + self._timeout_s
        with self._answered:
            while missing := [session for session in sessions if session not in self._answers]:
                # A lost ps never answers; its stream's end wakes nobody here, so look twice a
                # second.
                self._answered.wait(0.5)
                for session in missing:
                    if session not in self._answers and not self._coordinator.is_alive(session):
                        raise ShardLost(
                            "a ps was lost while it wrote its files; what was saved before stands, "
                            "and a save works again once the ps is back"
                        )

                if time.monotonic() > deadline:
                    raise SaveTimedOut(
                        f"{len(missing)} ps did not finish within {self._timeout_s:.0f} s"
                    )

            failed = [answer.error for answer in self._answers.values() if answer.error]
            if any(answer.changes_not_noted for answer in self._answers.values()):
                raise ChangesNotNoted(failed[0])  # a table is on all ps
            if any(answer.changes_forgotten for answer in self._answers.values()):
                raise ChangesForgotten("; ".join(failed))
            if failed:
                raise SaveFailed("; ".join(failed))

            return {session: self._answers[session] for session in sessions}

    def pushes_written(self) -> dict[int, int]:
        """By session of a ps: the pushes that are in its files for sure."""
        with self._answered:
            return {session: answer.pushes for session, answer in self._answers.items()}


def _check_variables_alone(files: list[ShardFile]) -> None:
    """SaveFailed unless the files have variables, and nothing else."""
    others = [file.name for file in files if file.kind != FileKind.VARIABLES]
    if others:
        raise SaveFailed(
            f"a ps of another version has written {others[0]} into a dense-only checkpoint"
        )

    if not any(file.rows for file in files):
        raise SaveFailed(
            "the model has no variables, so a dense-only checkpoint would be empty; create "
            "variables, or leave out --dense-save-every-s and --dense-save-every-steps"
        )


def _said_of(folder: Location, file: ShardFile, size: int | None) -> str:
    return (
        f"a ps says that it wrote {file.bytes} bytes to {folder / file.name}, and "
        f"{'no such file is' if size is None else f'{size} bytes are'} here; "
        "does every ps see the same directory as the controller?"
    )
