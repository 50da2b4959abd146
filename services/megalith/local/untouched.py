"""Whether a run still is what the checkpoint has that it began with.

Then it saves no other one: the checkpoints of runs that train nothing would push older ones out of
the list.
"""

import base64
from pathlib import Path

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.storage.location import Location
from megalith.local.model import LocalModel
from megalith.wire.reports import RestoreReport


def is_taken_whole(
    model: LocalModel, before: dict[str, object], checkpoint: Location, report: RestoreReport
) -> bool:
    """Whether a model that was restored, and then given what its task needs, has what was saved.

    `before` are its settings in between. Rows that had expired, a table, a variable or a setting
    that is new, or a filter that begins to count anew make it another model. And what increments
    have belongs into a checkpoint at the end of a run.
    """
    is_less = report.expired or report.left_out or report.filters_reset
    is_as_saved = not is_less and model.settings() == before
    return is_as_saved and not increments.read_chain(checkpoint).number


def has_input(checkpoint: Location, cursor: bytes, index: int, count: int, name: str) -> bool:
    """Whether the input of rank `index` of `count` goes on where the checkpoint says."""
    saved = increments.read_chain(checkpoint).last
    if not saved.cursors:
        return not cursor

    is_same_name = saved.input_name == name
    own = base64.b64decode(saved.cursors[index]) if len(saved.cursors) == count else None
    return is_same_name and own == cursor


def is_newest(folder: Path, checkpoint: Location) -> bool:
    """Whether the next run would begin with it too."""
    newest = catalog.latest(folder)
    return newest is not None and str(newest.absolute()) == str(checkpoint.absolute())
