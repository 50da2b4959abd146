"""Copying a run of floats between arrays, as wide as the CPU goes."""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

_STRIDES = (16, 4, 1)  # floats moved at once: a cache line, then what is left of it


def _copy_floats(typingctx: Any, source: Any, begin: Any, target: Any, at: Any, count: Any) -> Any:
    """target[at : at+count] = source[begin : begin+count]; count may be 0.

    Both are 1-D and apart from each other.

    Written out because a plain loop is compiled with a check for overlap and a scalar tail for each
    row, and a function with branches counts references to its arrays: 14 ns for 16 floats, which
    take 2 here.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = (
            cast(Any, arrayobj).make_array(signature.args[i])(context, builder, args[i])
            for i in (0, 2)
        )
        source, target = (
            builder.gep(array.data, [args[i]]) for array, i in zip(arrays, (1, 3), strict=True)
        )
        left = context.cast(builder, args[4], signature.args[4], types.intp)
        done = cast(Any, cgutils).alloca_once_value(builder, left.type(0))
        for stride in _STRIDES:
            steps = builder.sdiv(left, left.type(stride))
            pointer = (
                ir.VectorType(ir.FloatType(), stride).as_pointer()
                if stride > 1
                else ir.FloatType().as_pointer()
            )
            with cgutils.for_range(builder, steps):
                offset = builder.load(done)
                here, there = (
                    builder.bitcast(builder.gep(p, [offset]), pointer) for p in (source, target)
                )
                builder.store(builder.load(here, align=4), there, align=4)
                builder.store(builder.add(offset, left.type(stride)), done)
            left = builder.srem(left, left.type(stride))
        return context.get_dummy_value()

    return types.void(source, begin, target, at, count), codegen


copy_floats = cast(Callable[[Any, Any, Any, Any, Any], None], intrinsic(_copy_floats))
