"""How long to wait before a call is tried again."""

import random

import tenacity

# Not the generator that the functions of `random` share. A training program may have seeded that
# one: the program's own numbers must not depend on how often a call was tried, and programs with
# the same seed must not try again all at once.
_random = random.SystemRandom()


class JitteredBackoff(tenacity.wait_exponential):
    """A random time up to a limit, which is `first_s` at first and doubles up to `longest_s`.

    Many callers lose a server at the same moment. Random times keep them from coming back at the
    same moment too.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        super().__init__(multiplier=first_s, max=longest_s)

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        limit_s = super().__call__(retry_state)
        return _random.uniform(0.0, limit_s)
