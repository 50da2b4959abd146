"""Which checkpoint parameter servers start from, and whether all of it has come back."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.format import LIST
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.starting import first_chain
from megalith.checkpoint.starting.choices import EVERYTHING, RestoreChoices
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.runtime.counting import counted
from megalith.wire.reports import RestoreReport

_MOST_SAVES = 16  # whose rows are kept; servers that start together start from the newest


class _Save(NamedTuple):
    """Which save a server has started from: a path alone may have had another checkpoint before.

    And a time alone may be that of several increments, because a clock that was set back stands
    still for them.
    """

    path: str
    saved_at_s: float
    increments: int = 0


class StartPoint:
    """The newest checkpoint of the model directory, and the rows of those to start from.

    `_lock` guards what is known of them.
    """

    def __init__(self, model_dir: Location) -> None:
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._newest: Location | None = None
        self._first: _Save | None = None  # the run takes its step and its input from this one
        self._rows_by_save: dict[_Save, int] = {}  # of the last ones that were found, oldest first
        self._choices = EVERYTHING
        self._chosen: _Save | None = None  # the checkpoint that they are about

    def choose(self, base: Location, saved_at_s: float, choices: RestoreChoices) -> None:
        """Of the checkpoint that was saved then, only this is restored."""
        with self._lock:
            self._choices = choices
            self._chosen = _Save(str(base.absolute()), saved_at_s)

    def choices_of(self, chain: Chain, dropped_at_s: Mapping[str, float]) -> RestoreChoices:
        """What a ps restores of a checkpoint; of its tables not those that were dropped since."""
        path = str(chain.directory.absolute())
        save = _Save(path, chain.base.saved_at_s)
        with self._lock:
            choices = self._choices if save == self._chosen else EVERYTHING

        unwanted = list(choices.left_out_tables)
        for name, at_s in dropped_at_s.items():
            if at_s > chain.last.saved_at_s:
                unwanted.append(name)

        files = (*chain.base.files, *chain.last.files)
        tables = {file.table for file in files}
        left_out = sorted(tables.intersection(unwanted))
        return replace(choices, left_out_tables=tuple(left_out))

    @property
    def newest(self) -> Location | None:
        """The newest checkpoint that this controller has started from or written.

        None before there is one.
        """
        with self._lock:
            return self._newest

    def find(self) -> Chain | None:
        """The checkpoint to start from: the one that the list names, as an operator may change it.

        With it, the increments that are to be loaded.

        None = start empty. A checkpoint that is gone or cannot be read is an error that names the
        file and the ways out, also if nothing at all is left of one that this job has had.
        """
        chain = self._newest_chain()
        if chain is None:
            if self.newest is not None:
                raise CheckpointNotFound(
                    f"{self.newest} is gone, and so is {self._model_dir / LIST}: "
                    "a ps that came back empty would train on with a part of the model; "
                    "put them back, or end the job"
                )

            return None

        path = chain.directory
        content = chain.last
        manifest.check_has_rows(path, content)
        save = _Save(str(path.absolute()), content.saved_at_s, chain.number)
        with self._lock:
            self._newest = path
            self._first = self._first or save
            self._rows_by_save.pop(save, None)
            self._rows_by_save[save] = content.rows
            if len(self._rows_by_save) > _MOST_SAVES:
                oldest = next(iter(self._rows_by_save))
                del self._rows_by_save[oldest]

        return chain

    def _newest_chain(self) -> Chain | None:
        """A save that ends meanwhile takes the increments of the checkpoint before it away.

        What is left of that one would look like a checkpoint that never had any.
        """
        path = catalog.latest(self._model_dir)
        while path is not None:
            chain = None
            fault: CheckpointDamaged | CheckpointNotFound | FileNotFoundError | None = None
            try:
                chain = self._chain_of(path)
            except (CheckpointDamaged, CheckpointNotFound, FileNotFoundError) as error:
                fault = error

            newest = catalog.latest(self._model_dir)
            if newest == path and isinstance(fault, CheckpointDamaged):
                ways_out = catalog.ways_out(self._model_dir)
                raise CheckpointDamaged(f"{fault}; {ways_out}") from fault
            if newest == path and fault is not None:
                raise fault
            if newest == path:
                return chain

            path = newest

        return None

    def _chain_of(self, path: Location) -> Chain:
        if stored.is_same(path.parent, self._model_dir):
            return increments.read_chain(path)

        return first_chain.read(self._model_dir, path)

    def saved(self, path: Location) -> None:
        """There is a newer checkpoint."""
        with self._lock:
            self._newest = path

    def fault(self, restored: Sequence[RestoreReport | None], *, is_first: bool) -> str:
        """Why servers that are ready must not go on together; empty if they may.

        What they restored from one save adds up to its rows. Servers that start together
        (`is_first`) start from the same checkpoint, the one that the step and the input of the run
        are of. Another job may change it meanwhile, if it is in the directory of that job. Later a
        replacement has a newer one than the others; each server then has checked its own part. None
        is a server that an earlier controller has let go on.
        """
        known = [part for part in restored if part is not None]
        saves = {_Save(part.path, part.saved_at_s, part.increments) for part in known}
        if len(saves) > 1:
            paths = sorted({save.path for save in saves})
            if is_first:
                return (
                    f"parameter servers started from different checkpoints: {paths}; "
                    "start the job again"
                )

            return ""

        if len(known) < len(restored) or not saves:
            return ""

        (save,) = saves
        with self._lock:
            expected = self._rows_by_save.get(save)
            first = self._first or save

        if is_first and save.path and save != first:
            return (
                f"parameter servers started from {save.path} as it was saved at "
                f"{save.saved_at_s:.3f}, but the step and the input of this run are those of "
                f"{first.path} as it was saved at {first.saved_at_s:.3f}: it has changed since "
                "this controller was started; start the job again"
            )

        rows = sum(part.rows for part in known)
        expired = sum(part.expired for part in known)
        left_out = sum(part.left_out for part in known)
        if not save.path or rows + expired + left_out == expected:
            return ""  # without a checkpoint nobody had anything to restore

        if expected is None:
            return (
                f"{len(known)} parameter servers restored {rows} rows from {save.path} as it was "
                f"saved at {save.saved_at_s:.3f}, of which this controller does not know how many "
                "there are; start the job again"
            )

        missing = expected - rows - expired - left_out
        return (
            f"{save.path} has {expected} rows, but {len(known)} parameter servers restored {rows}, "
            f"found {expired} expired and left {left_out} out: "
            f"{counted(missing, 'row is', 'rows are')} missing"
        )
