"""What saves leave behind that failed or whose controller died, and how it goes away."""

import contextlib
import logging
import time
from pathlib import Path

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.storage.location import Location
from megalith.runtime.files import remove_temporaries

logger = logging.getLogger(__name__)

_TEMPORARY_S = 3600.0  # after which a half written file is nobody's, whatever clocks say
_DISCARD_TRIES = 20
_LOOK_S = 0.1  # between two tries


def remove_leftovers(model_dir: Location) -> None:
    """Remove what is left of own saves whose controller died.

    For the owner of the directory, before it saves. What another job is saving there, or has
    left, stays.
    """
    if isinstance(model_dir, Path):
        remove_temporaries(model_dir, _TEMPORARY_S)

    catalog.remove_dropped(model_dir)
    own = [*catalog.own_work_directories(model_dir), *increments.unfinished(model_dir)]
    for path in own:
        logger.warning("removing %s, left of a save whose controller died", path)
        discard(path)

    for path in catalog.saves_of_others(model_dir):
        logger.warning(
            "%s is a save of another job, or left of one; remove it if no job saves there", path
        )


def discard(folder: Location, save_id: str = "") -> None:
    """Remove all of a save that failed or was cut short.

    A ps that is late may put another file into it meanwhile, so it is tried several times. The
    manifest goes first: if this process dies meanwhile, what is left is no checkpoint. With the id
    of the save a folder stays that a newer controller has removed and begun again.
    """
    for _ in range(_DISCARD_TRIES):
        if catalog.is_taken(folder, save_id):
            catalog.remove_own(folder, save_id)
            return

        catalog.give_up(folder)
        with contextlib.suppress(OSError):
            if not folder.exists():
                return

        time.sleep(_LOOK_S)

    logger.error("%s is left of a save, and could not be removed; remove it by hand", folder)
