"""What a training without servers has come to."""

from collections import deque
from dataclasses import dataclass, field

from megalith.checkpoint.storage.location import Location
from megalith.local.model import LocalModel
from megalith.wire.reports import InputCounts
from megalith.worker.task import Read

MOST_LOSSES = 1_000_000  # that are kept: 32 MB, however long a stream is


def _no_losses() -> deque[float]:
    return deque(maxlen=MOST_LOSSES)


@dataclass(slots=True)
class LocalRun:
    """What a training in one process has come to.

    `losses` has the loss of each step of this run, and of the last million steps if there were
    more; that of a batch that was left out is NaN. `left_out` is what the input has passed over.
    `missing_values` are those that trained examples lack, as far as the task counts them.
    `stop_reason` is why a hook ended the training; empty if none did. `figures` are those of the
    task's evaluation, and `read` reads rows and variables of the trained model, as `Task.evaluate`
    does. With `has_nothing_new` nothing was trained since `checkpoint`, which the run has begun
    with, so that no other one was saved.

    Of synchronous training each rank has a run of its own: its losses and examples. `figures` are
    those of rank 0, and `read` is a call that all ranks make together. `untrained_batches` are
    those that some rank still had when another came to its end; None if that is not known.
    """

    step: int
    read: Read
    model: LocalModel
    last_losses: deque[float] = field(default_factory=_no_losses, repr=False)
    examples: int = 0
    seconds: float = 0.0
    skipped_batches: int = 0
    untrained_batches: int | None = 0
    left_out: InputCounts = field(default_factory=InputCounts)
    missing_values: int = 0
    stop_reason: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    checkpoint: Location | None = None
    has_nothing_new: bool = False

    @property
    def losses(self) -> list[float]:
        return list(self.last_losses)
