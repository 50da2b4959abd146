"""Compiled loops of tables and variables: arrays in, arrays out.

They need the compiler. Latches and prefetches are machine instructions that Python has no words
for, so NUMBA_DISABLE_JIT, which would run the functions as they stand here, is refused at once.
"""

from numba.core import config

if getattr(config, "DISABLE_JIT", 0):
    raise ImportError("megalith.engine.kernels cannot run uncompiled; unset NUMBA_DISABLE_JIT")
