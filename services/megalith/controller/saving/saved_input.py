"""Where the input of workers was when a checkpoint was saved: taken, kept and told."""

import base64
import binascii
from dataclasses import dataclass

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.storage.location import Location
from megalith.controller.coordinator import Coordinator
from megalith.controller.members.piece_book import book_of, is_book
from megalith.controller.saving import input_names
from megalith.errors import CheckpointDamaged
from megalith.runtime.counting import counted


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The cursors of all workers, by index, and the steps that were done when they were there.

    Of an input that is handed out there is one cursor: the book of its pieces.

    A cursor is taken before any row is written. So each batch that it leaves behind is in the rows,
    and none is lost. Batches that are trained while rows are written are trained again after a
    restart; when training is held for the save there are none.
    """

    cursors: tuple[bytes, ...] = ()
    step: int = 0
    repeated: int = 0  # batches, about, that were trained after that and are in the rows too

    @classmethod
    def taken_from(cls, coordinator: Coordinator) -> "SavedInput":
        return cls(coordinator.cursors(), coordinator.cursors_step())

    @classmethod
    def of(cls, saved: Manifest, path: Location) -> "SavedInput":
        """As a checkpoint has it; none in those of early versions."""
        try:
            cursors = tuple(base64.b64decode(text, validate=True) for text in saved.cursors)
        except (binascii.Error, TypeError) as error:
            raise CheckpointDamaged(f"{path}: a cursor is not base64: {error}") from error

        try:
            book_of(cursors)
        except ValueError as error:
            raise CheckpointDamaged(f"{path}: {error}") from error

        return cls(cursors, saved.step, saved.repeated_batches)

    @property
    def texts(self) -> tuple[str, ...]:
        """As a manifest has them; none if no worker has begun."""
        if not any(self.cursors):
            return ()

        return tuple(base64.b64encode(cursor).decode() for cursor in self.cursors)


def start_of(chain: Chain, input_name: str, num_workers: int) -> tuple[tuple[bytes, ...], str]:
    """Where the input of a run begins that starts from a chain: cursors, and words for people.

    There are no cursors if its newest save has none, or if they are of an input of another name.
    Those of another number of workers are divided by the input alone: see `Input.resumed`. Without
    workers nobody reads: the cursors are kept for a later run, and nothing is to be said.
    """
    saved = chain.last
    path = chain.directory
    if num_workers == 0:
        return SavedInput.of(saved, path).cursors, ""

    if not saved.cursors:
        has_trained = saved.step > 0
        said = f"is read from its beginning: {path} does not say where an input was"
        return (), said if has_trained else ""

    if saved.input_name != input_name:
        why = input_names.difference(saved.input_name, input_name, str(path))
        return (), f"is read from its beginning: {why}"

    again = "no batch counts twice"
    if saved.repeated_batches:
        batches = counted(saved.repeated_batches, "batch", "batches")
        again = (
            "all steps after it are trained anew; counted twice, because the model has them "
            f"already: about {batches} of these"
        )

    cursors = SavedInput.of(saved, path).cursors
    is_divided = not any(is_book(cursor) for cursor in cursors)
    if is_divided and len(cursors) != num_workers:
        workers = counted(len(cursors), "worker")
        again = (
            f"it was divided among {workers} then, and is among {num_workers} now: batches may be "
            "trained again, and the logs of the workers say from where on; none is left out"
        )

    newest = f"increment {chain.number} of {path}" if chain.number else str(path)
    return cursors, f"goes on where it was when {newest} was saved, at step {saved.step}; {again}"
