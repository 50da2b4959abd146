"""Floats and halves at any byte of a byte array, for serving rows, which wait for the replicas.

Compressed segments follow each other without padding.

The four functions become one load or store (and one conversion instruction) each and vectorise;
assembling the bytes by shifts would not. Nothing is checked, not even under NUMBA_BOUNDSCHECK.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from megalith.kernels.dtypes import U8


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, to: Any) -> Any:
    data = cast(Any, arrayobj).make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _loader(stored: Any) -> Callable[..., Any]:
    def load(typingctx: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature.args[0], args[0], args[1], stored)
            value = builder.load(pointer, align=1)
            return value if stored == ir.FloatType() else builder.fpext(value, ir.FloatType())

        return types.float32(array, index), codegen

    return load


def _storer(stored: Any) -> Callable[..., Any]:
    def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature.args[0], args[0], args[1], stored)
            value = args[2] if stored == ir.FloatType() else builder.fptrunc(args[2], stored)
            builder.store(value, pointer, align=1)
            return context.get_dummy_value()

        return types.void(array, index, types.float32), codegen

    return store


load_float = cast(Callable[[U8, Any], np.float32], intrinsic(_loader(ir.FloatType())))
load_half = cast(Callable[[U8, Any], np.float32], intrinsic(_loader(ir.HalfType())))
store_float = cast(Callable[[U8, Any, np.float32], None], intrinsic(_storer(ir.FloatType())))
store_half = cast(Callable[[U8, Any, np.float32], None], intrinsic(_storer(ir.HalfType())))
