"""Comparing all words of a cache line at once."""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from megalith.engine.kernels.layout import U64

_WORDS = 8
_LINE_BYTES = 64


def _matches(typingctx: Any, array: Any, index: Any, word: Any) -> Any:
    """Bit i says whether array[index + i] is the word, i = 0..7.

    The array is 1-D, and the element the first of a line.

    Written out because eight comparisons in Python's words become branches, one mispredicted for
    every id, or a dozen instructions for each slot; these are six for a line. Nothing is checked,
    not even under NUMBA_BOUNDSCHECK.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = cast(Any, arrayobj).make_array(signature.args[0])(context, builder, args[0]).data
        vector = ir.VectorType(ir.IntType(64), _WORDS)
        i32 = ir.IntType(32)
        line = builder.load(
            builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer()), align=_LINE_BYTES
        )
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), args[2], i32(0))
        every = builder.shuffle_vector(
            first, first, ir.Constant(ir.VectorType(i32, _WORDS), [0] * _WORDS)
        )
        bits = builder.bitcast(builder.icmp_unsigned("==", line, every), ir.IntType(_WORDS))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(array, index, types.uint64), codegen


def _trailing_zeros(typingctx: Any, word: Any) -> Any:
    """The number of the lowest bit that is set; the word is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


matches = cast(Callable[[U64, Any, Any], int], intrinsic(_matches))
trailing_zeros = cast(Callable[[Any], int], intrinsic(_trailing_zeros))
