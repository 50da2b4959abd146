"""Keeping rows finite: what a block of rows held before an update, put back where the update spoiled it.

Finite gradients can overflow a weight, or the squares that an optimizer keeps; from then on every step of the row is
NaN. Looking at the result covers all optimizers and any settings, which a limit on gradients would not: weights also
grow by rates and decays.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.copying import copy_floats
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.layout import Int

LANES = 16  # floats looked at together: a cache line
_STRIDES = (LANES, 4, 1)
_EXPONENT = 0x7F800000  # all of its bits: NaN or infinity


def _note_exponents(typingctx: Any, values: Any, begin: Any, count: Any, worst: Any) -> Any:
    """worst[lane] = the largest exponent bits of values[begin : begin+count] in that lane, if above what it is.

    Written out for the same reason as `copy_floats`; besides, a loop would reduce the lanes to one number for each row.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = (
            cast(Any, arrayobj).make_array(signature.args[i])(context, builder, args[i])
            for i in (0, 3)
        )
        source, target = (array.data for array in arrays)
        source = builder.gep(source, [args[1]])
        left = context.cast(builder, args[2], signature.args[2], types.intp)
        done = cast(Any, cgutils).alloca_once_value(builder, left.type(0))
        for stride in _STRIDES:
            steps = builder.sdiv(left, left.type(stride))
            vector = ir.VectorType(ir.IntType(32), stride)
            there = builder.bitcast(target, vector.as_pointer())
            mask = ir.Constant(vector, [_EXPONENT] * stride)
            with cgutils.for_range(builder, steps):
                offset = builder.load(done)
                here = builder.bitcast(builder.gep(source, [offset]), vector.as_pointer())
                bits = builder.and_(builder.load(here, align=4), mask)
                highest = builder.load(there, align=4)
                is_higher = builder.icmp_signed(">", bits, highest)
                builder.store(builder.select(is_higher, bits, highest), there, align=4)
                builder.store(builder.add(offset, left.type(stride)), done)
            left = builder.srem(left, left.type(stride))
        return context.get_dummy_value()

    return types.void(values, begin, count, worst), codegen


note_exponents = cast(Callable[[Any, Any, Any, Any], None], intrinsic(_note_exponents))


@kernel
def keep_rows(values: F32, starts: I64, width: Int, before: F32) -> None:
    """Copy the first `width` floats of the rows at `starts`; -1 skips."""
    for i in range(starts.size):
        if starts[i] >= 0:
            copy_floats(values, starts[i], before, i * width, width)


@kernel
def put_back(values: F32, starts: I64, width: Int, before: F32, worst: Any) -> Int:
    """Give rows that are not finite what `keep_rows` copied; at how many positions such a row was.

    A row that occurs several times in the block loses all of its updates there, and each counts. `worst` is scratch of
    LANES int32.
    """
    if are_finite(values, starts, width, worst):
        return 0
    spoiled = 0
    for i in range(starts.size):
        spoiled += not are_finite(values, starts[i : i + 1], width, worst)
    for i in range(starts.size):
        if not are_finite(values, starts[i : i + 1], width, worst):
            copy_floats(before, i * width, values, starts[i], width)
    return spoiled


@kernel
def are_finite(values: F32, starts: I64, width: Int, worst: Any) -> bool:
    """Whether the first `width` floats of all rows at `starts` are finite; -1 skips."""
    worst[:] = 0
    for i in range(starts.size):
        if starts[i] >= 0:
            note_exponents(values, starts[i], width, worst)
    return bool(worst.max() < _EXPONENT)
