"""How many files this process may have open.

Each connection is one, and so is each file of a checkpoint.
"""

import logging
import resource

logger = logging.getLogger(__name__)

_KEPT_SHARE = 4  # one of so many files stays free for checkpoints, logs and gRPC's own connections


def raise_soft_limit() -> None:
    """Take as many open files as the system allows this process.

    The usual 1024 are fewer than many connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of %d open files stays as it is: %s", soft, error)
        return

    logger.info("open files limit=%d before=%d", hard, soft)


def room_for(wanted: int, what: str) -> int:
    """How many of `wanted` connections leave files free for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted

    room = max(1, soft - soft // _KEPT_SHARE)
    if room < wanted:
        logger.warning(
            "%d %s instead of %d: this process may have %d files open", room, what, wanted, soft
        )

    return min(wanted, room)
