"""How long the AppMaster goes on answering once the job is over."""

import time
from collections.abc import Callable

from megalith.appmaster.supervision import Supervision

# For a supervisor to ask once more after the end. It asks twice a second, but a controller that
# hangs and a busy machine make it late, and without this answer it would wait for ever.
_TELL_END_S = 15.0
_LOOK_S = 0.1


def wait_before_leaving(
    supervision: Supervision, linger: Callable[[float], bool], linger_s: float
) -> None:
    """Return once the supervisor has heard of the end, and `linger_s` more have gone by.

    `linger` waits for some seconds, and returns True at once if the process is told to stop. The
    supervisor comes first and `linger_s` afterwards: an answer that got lost is asked for again.
    """
    deadline = time.monotonic() + _TELL_END_S
    while supervision.is_end_to_be_told and time.monotonic() < deadline:
        if linger(_LOOK_S):
            return

    linger(linger_s)
