"""When the SDK tries again: never for what cannot succeed, always within the caller's deadline."""

import tenacity

from megalith.errors import DeadlinePassed, Overloaded, StaleEpoch, Unavailable
from megalith.wire.backoff import JitteredBackoff

# The one list of errors that pass by themselves. A worker's steps are tried again for the same.
# An overloaded server has applied nothing. The others leave it open whether the call took effect;
# the calls that are tried again are idempotent, a push by its sequence.
PASSING = (Unavailable, StaleEpoch, DeadlinePassed, Overloaded)


def until(deadline_s: float) -> tenacity.Retrying:
    """Try again for what passes, with jittered backoff, until `deadline_s` seconds are over.

    Then the last error.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(PASSING),
        wait=JitteredBackoff(first_s=0.05, longest_s=1.0),
        stop=tenacity.stop_after_delay(deadline_s),
        reraise=True,
    )
