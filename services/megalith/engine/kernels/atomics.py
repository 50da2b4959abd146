"""Loads, stores and swaps that other threads see in order, on int64 arrays (1-D, contiguous)."""

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from megalith.engine.kernels.layout import Int
from megalith.kernels.dtypes import I64

_ALIGN = 8


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.gep(
        cast(Any, arrayobj).make_array(signature.args[0])(context, builder, args[0]).data, [args[1]]
    )


def _load_acquire(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index]; what this thread reads afterwards is at least as new."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", _ALIGN)

    return types.int64(array, index), codegen


def _store_release(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value; who sees it sees everything this thread wrote before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], types.int64)
        builder.store_atomic(value, _pointer(context, builder, signature, args), "release", _ALIGN)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


def _compare_exchange(typingctx: Any, array: Any, index: Any, expected: Any, value: Any) -> Any:
    """Set array[index] to value if it is expected; whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args)
        expected = context.cast(builder, args[2], signature.args[2], types.int64)
        value = context.cast(builder, args[3], signature.args[3], types.int64)
        pair = builder.cmpxchg(pointer, expected, value, "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(array, index, expected, value), codegen


def _fence(typingctx: Any) -> Any:
    """Keep the reads and writes before it before those after it.

    An earlier write and a later read may still change places.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), codegen


load_acquire = cast(Callable[[I64, Int], int], intrinsic(_load_acquire))
store_release = cast(Callable[[I64, Int, Int], None], intrinsic(_store_release))
compare_exchange = cast(Callable[[I64, Int, Int, Int], bool], intrinsic(_compare_exchange))
fence = cast(Callable[[], None], intrinsic(_fence))
sched_yield = cast(Callable[[], int], types.ExternalFunction("sched_yield", types.intc()))
"""libc's: let another thread run, for a waiter whose holder may have lost the CPU."""
