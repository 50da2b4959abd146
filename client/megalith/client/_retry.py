"""When the SDK tries again: never for what cannot succeed, always within the caller's deadline."""

import tenacity

from megalith.wire.errors import DeadlinePassed, Overloaded, StaleEpoch, Unavailable

# An overloaded server has applied nothing. The others leave it open whether the call took effect; the calls that are
# tried again are idempotent, a push by its sequence.
PASSING = (Unavailable, StaleEpoch, DeadlinePassed, Overloaded)


def until(deadline_s: float) -> tenacity.Retrying:
    """Try again for what passes, with jittered backoff, until `deadline_s` seconds are over; then the last error."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(PASSING),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
        stop=tenacity.stop_after_delay(deadline_s),
        reraise=True,
    )
