"""Where the input of workers was when a checkpoint was saved: taken, kept and told."""

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

from megalith.checkpoint.manifest import Manifest
from megalith.controller.coordinator import Coordinator
from megalith.errors import CheckpointDamaged


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The cursors of all workers, by index, and the steps that were done when they were taken.

    A cursor is taken before any row is written. So each batch that it leaves behind is in the rows,
    and none is lost. Batches that are trained while rows are written are trained again after a
    restart; when training is held for the save there are none.
    """

    cursors: tuple[bytes, ...] = ()
    step: int = 0

    @classmethod
    def taken_from(cls, coordinator: Coordinator) -> "SavedInput":
        return cls(coordinator.cursors(), coordinator.global_step)

    @classmethod
    def of(cls, saved: Manifest, path: Path) -> "SavedInput":
        """As a checkpoint has it; none in those of early versions."""
        try:
            cursors = tuple(base64.b64decode(text, validate=True) for text in saved.cursors)
        except (binascii.Error, TypeError) as error:
            raise CheckpointDamaged(f"{path}: a cursor is not base64: {error}") from error

        return cls(cursors, saved.step)

    @property
    def texts(self) -> tuple[str, ...]:
        """As a manifest has them; none if no worker has begun."""
        if not any(self.cursors):
            return ()

        return tuple(base64.b64encode(cursor).decode() for cursor in self.cursors)


def start_of(saved: Manifest, path: Path, input_name: str) -> tuple[tuple[bytes, ...], str]:
    """Where the input of a run begins that starts from a checkpoint: cursors, and words for people.

    There are no cursors if the checkpoint has none, or if they are of an input of another name.
    """
    if not saved.cursors:
        return (), ""

    if saved.input_name != input_name:
        old = f"named {saved.input_name}" if saved.input_name else "without a name"
        return (), f"is read from its beginning: {path} was saved with an input {old}"

    again = "no batch is trained again"
    if saved.repeated_batches:
        again = f"about {saved.repeated_batches:,} batches are trained again, and none is left out"

    words = f"goes on where it was when {path} was saved; {again}"
    return SavedInput.of(saved, path).cursors, words
