"""The one place that fixes how the SDK's kernels are compiled, and where the result is kept.

The options are those of the parameter server's kernels: `nogil` lets pulls and pushes of several threads run at once,
`cache` makes the second start fast, the numpy error model and `contract` let loops be vectorised without touching NaN,
infinity or the order of sums.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

P = ParamSpec("P")
R = TypeVar("R")

_HERE = Path(__file__).parent


def _cache_dir() -> Path:
    """A folder named after the sources of all kernels here: numba itself looks at the file of one kernel only."""
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    home = _HERE if os.access(_HERE, os.W_OK) else Path.home() / ".cache" / "megalith"
    return home / "__pycache__" / f"compiled-{digest.hexdigest()[:12]}"


_CACHE_DIR = str(_cache_dir())

# A fork waits for a kernel that another thread compiles or loads. The child has no such thread: the lock would be held
# there for ever, and the first kernel that the child needs would wait for it.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call for each set of argument types. No bounds are checked: the caller has.

    NUMBA_CACHE_DIR wins over the folder here. numba reads the setting while it decorates, so it is put back after:
    another package in the process has its own folder.
    """
    settings = vars(config)
    before = settings["CACHE_DIR"]
    settings["CACHE_DIR"] = os.environ.get("NUMBA_CACHE_DIR") or _CACHE_DIR
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})(
            function
        )
    finally:
        settings["CACHE_DIR"] = before
    return cast(Callable[P, R], compiled)
