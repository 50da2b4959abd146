"""The one place that fixes how kernels are compiled, and where the result is kept.

`nogil`: several threads run kernels at once. `cache`: a restarted server is ready in a second, not
twenty. `error_model="numpy"`: the default one inserts a check and a branch for every division,
which keeps loops from being vectorised. `fastmath={"contract"}` lets a*b+c be one instruction and
leaves NaN, infinity and the order of sums alone.

A kernel is kept in a folder that is named after the sources of all kernels that it may call. Numba
itself looks only at the file of the kernel, and would go on with the old code of a function that
another file has.
"""

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

P = ParamSpec("P")
R = TypeVar("R")

_SHARED = Path(__file__).parent
_ROOMS = ("kernels", "_kernels")  # what a folder of kernels is called

# A fork waits for a kernel that another thread compiles or loads. The child has no such thread: the
# lock would be held there for ever, and the first kernel that the child needs would wait for it.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call for each set of argument types.

    A kernel checks no bounds: its caller has.
    """
    return _compiled(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel for a few lines inside a loop over ids, always compiled into its caller.

    A call passes each array as seven words on the stack, which takes longer than the search of an
    index. LLVM inlines by itself only what is small or called from one place.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """NUMBA_CACHE_DIR wins over the folder here.

    Numba reads the setting while it decorates, so it is put back after: another package in the
    process has its own.
    """
    settings = vars(config)
    before = settings["CACHE_DIR"]
    settings["CACHE_DIR"] = os.environ.get("NUMBA_CACHE_DIR") or _cache_dir(_room_of(function))
    try:
        decorate = numba.njit(
            nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, **options
        )
        return cast(Callable[P, R], decorate(function))
    finally:
        settings["CACHE_DIR"] = before


def _room_of(function: Callable[..., Any]) -> Path:
    """The folder of kernels that the function is in; its own folder if that is none."""
    folder = Path(inspect.getfile(function)).parent
    for parent in (folder, *folder.parents):
        if parent.name in _ROOMS:
            return parent
    return folder


@functools.cache
def _cache_dir(room: Path) -> str:
    own = set(room.rglob("*.py"))
    shared = set(_SHARED.glob("*.py"))

    digest = hashlib.sha256()
    for source in sorted(own | shared):
        digest.update(source.read_bytes())

    home = room
    if not os.access(room, os.W_OK):
        home = Path.home() / ".cache" / "megalith"

    folder = f"compiled-{digest.hexdigest()[:12]}"
    return str(home / "__pycache__" / folder)
