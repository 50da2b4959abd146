"""Software prefetch.

This one instruction lets a loop over random rows keep several cache misses in flight.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj


def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask the CPU to load the cache line of array[index] (1-D, contiguous); never faults."""
    signature = types.void(array, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_struct = cast(Any, arrayobj).make_array(signature.args[0])
        data = array_struct(context, builder, args[0]).data
        i8p = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [i8p, i32, i32, i32])
        name = "llvm.prefetch.p0i8"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, function_type, name=name
        )
        pointer = builder.bitcast(builder.gep(data, [args[1]]), i8p)
        builder.call(
            function, [pointer, i32(0), i32(3), i32(1)]
        )  # read, keep in all levels, data cache
        return context.get_dummy_value()

    return signature, codegen


prefetch = cast(Callable[[Any, Any], None], intrinsic(_prefetch))
