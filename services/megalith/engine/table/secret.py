"""Drawing what makes the codes of a table unlike those of any other."""

import secrets

import numpy as np

from megalith.engine.kernels.layout import Secret

_ALL = 1 << 64


def draw() -> Secret:
    """A new secret, from the operating system's source of randomness."""
    numbers = [secrets.randbits(64) for _ in range(3)]
    return secret_of(*numbers)


def secret_of(*numbers: int) -> Secret:
    """The secret with these three multipliers of 64 bits.

    An even one has no inverse and becomes odd.
    """
    multipliers = [number | 1 for number in numbers]
    inverses = [pow(multiplier, -1, _ALL) for multiplier in multipliers]

    words = [np.uint64(number) for number in multipliers + inverses]
    return Secret(*words)
