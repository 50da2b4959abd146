"""The numbers of mix64, the hash of ids. They are protocol.

Routing, the cells of filters in checkpoints and the start of random rows depend on them. Two loops
use them: `mixing.mix` in compiled code, and `wire.routing.mix64` over whole arrays. This module
imports no compiler, so processes that need no kernel can have it.
"""

import numpy as np

# x ^= x >> SHIFT_1; x *= FACTOR_1; x ^= x >> SHIFT_2; x *= FACTOR_2; x ^= x >> SHIFT_3
SHIFT_1 = np.uint64(30)
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
SHIFT_2 = np.uint64(27)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
SHIFT_3 = np.uint64(31)

BUCKET_BITS = 10  # the bucket of an id is the top bits of its hash
BUCKET_SHIFT = np.uint64(64 - BUCKET_BITS)
