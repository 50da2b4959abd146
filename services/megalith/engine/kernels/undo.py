"""Keeping rows finite.

What a block of rows held before an update is put back where the update spoiled it.

Finite gradients can overflow a weight, or the squares that an optimizer keeps; from then on every
step of the row is NaN. Looking at the result covers all optimizers and any settings, which a limit
on gradients would not: weights also grow by rates and decays.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.layout import Int
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel

_STRIDES = (16, 4, 1)  # floats looked at together: a cache line, then what is left of it
_EXPONENT = 0x7F800000  # all of its bits: NaN or infinity


def _are_finite(typingctx: Any, values: Any, starts: Any, width: Any) -> Any:
    """Whether values[start : start+width] are finite for each start; those below 0 are skipped.

    The largest exponent of each lane stays in a register from the first row to the last. In a loop
    of Python the lanes become one number for each row, and an array of lanes is stored and loaded
    again for each: 4 ns a row of 32 floats, which take 1 here.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        alloca = cast(Any, cgutils).alloca_once_value
        make_array = cast(Any, arrayobj).make_array
        rows = make_array(signature.args[0])(context, builder, args[0]).data
        starts_array = make_array(signature.args[1])(context, builder, args[1])
        count = builder.extract_value(starts_array.shape, 0)
        width = context.cast(builder, args[2], signature.args[2], types.intp)
        highest = {}
        for stride in _STRIDES:
            vector = ir.VectorType(ir.IntType(32), stride)
            highest[stride] = alloca(builder, ir.Constant(vector, [0] * stride))
        with cgutils.for_range(builder, count) as row:
            start = builder.load(builder.gep(starts_array.data, [row.index]))
            with builder.if_then(builder.icmp_signed(">=", start, start.type(0))):
                here = alloca(builder, start)
                builder.store(start, here)
                left = width
                for stride in _STRIDES:
                    vector = ir.VectorType(ir.IntType(32), stride)
                    mask = ir.Constant(vector, [_EXPONENT] * stride)
                    with cgutils.for_range(builder, builder.sdiv(left, left.type(stride))):
                        at = builder.load(here)
                        lanes = builder.bitcast(builder.gep(rows, [at]), vector.as_pointer())
                        bits = builder.and_(builder.load(lanes, align=4), mask)
                        worst = builder.load(highest[stride])
                        is_higher = builder.icmp_signed(">", bits, worst)
                        builder.store(builder.select(is_higher, bits, worst), highest[stride])
                        builder.store(builder.add(at, at.type(stride)), here)
                    left = builder.srem(left, left.type(stride))
        is_finite = cgutils.true_bit
        for stride in _STRIDES:
            worst = builder.load(highest[stride])
            for lane in range(stride):
                exponent = builder.extract_element(worst, ir.IntType(32)(lane))
                is_lower = builder.icmp_signed("<", exponent, exponent.type(_EXPONENT))
                is_finite = builder.and_(is_finite, is_lower)
        return is_finite

    return types.boolean(values, starts, width), codegen


are_finite = cast(Callable[[Any, Any, Any], bool], intrinsic(_are_finite))


@kernel
def keep_rows(values: F32, starts: I64, width: Int, before: F32) -> None:
    """Copy the first `width` floats of the rows at `starts`; -1 skips."""
    for i in range(starts.size):
        if starts[i] >= 0:
            copy_floats(values, starts[i], before, i * width, width)


@kernel
def put_back(values: F32, starts: I64, width: Int, before: F32) -> Int:
    """Give rows that are not finite what `keep_rows` copied; at how many positions such a row was.

    A row that occurs several times in the block loses all of its updates there, and each counts.
    """
    if are_finite(values, starts, width):
        return 0
    spoiled = 0
    for i in range(starts.size):
        spoiled += not are_finite(values, starts[i : i + 1], width)
    for i in range(starts.size):
        if not are_finite(values, starts[i : i + 1], width):
            copy_floats(before, i * width, values, starts[i], width)
    return spoiled
