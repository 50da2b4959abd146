"""The one place that fixes how kernels are compiled.

`nogil`: several RPC threads run kernels at once. `cache`: a restarted server is ready in a second, not twenty.
`error_model="numpy"`: the default one inserts a check and a branch for every division, which keeps loops from being
vectorised. `fastmath={"contract"}` lets a*b+c be one instruction and leaves NaN, infinity and the order of sums alone.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call for each set of argument types. No bounds are checked: the caller has."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})(
        function
    )
    return cast(Callable[P, R], compiled)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel for a few lines inside a loop over ids, always compiled into its caller.

    A call passes each array as seven words on the stack, which takes longer than the search of an index. LLVM inlines
    by itself only what is small or called from one place.
    """
    compiled = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, inline="always"
    )(function)
    return cast(Callable[P, R], compiled)
