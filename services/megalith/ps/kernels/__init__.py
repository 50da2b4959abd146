"""Compiled loops: arrays in, arrays out. Importing the package decides where compiled code is kept.

They need the compiler. Latches and prefetches are machine instructions that Python has no words for, so
NUMBA_DISABLE_JIT, which would run the functions as they stand here, is refused at once.
"""

import hashlib
import os
from pathlib import Path

from numba.core import config

if getattr(config, "DISABLE_JIT", 0):
    raise ImportError("megalith.ps.kernels cannot run uncompiled; unset NUMBA_DISABLE_JIT")

_HERE = Path(__file__).parent


def _cache_dir() -> Path:
    """A folder named after the sources of all kernels, beside them or, if that is read-only, under the user's cache.

    numba looks only at the file of the kernel that it loads. A kernel compiled with an older version of one that it
    calls would be loaded after an edit there, or after an upgrade.
    """
    digest = hashlib.sha256()
    for source in sorted(_HERE.rglob("*.py")):
        digest.update(source.read_bytes())
    home = _HERE if os.access(_HERE, os.W_OK) else Path.home() / ".cache" / "megalith"
    return home / "__pycache__" / f"compiled-{digest.hexdigest()[:12]}"


if not getattr(config, "CACHE_DIR", ""):  # NUMBA_CACHE_DIR wins
    vars(config)["CACHE_DIR"] = str(_cache_dir())
