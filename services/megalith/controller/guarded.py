"""Threads that must go on: one look that fails must not be the last."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


def guarded(what: str, look: Callable[[], None]) -> Callable[[], None]:
    """`look`, but what it raises is logged with its traceback.

    An error that says the same as the one before it is not logged again.
    """
    said = ""

    def guarded_look() -> None:
        nonlocal said
        try:
            look()
            said = ""
        except Exception as error:
            if repr(error) != said:
                said = repr(error)
                logger.exception("%s failed, trying again", what)

    return guarded_look
