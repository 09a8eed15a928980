"""Ask the processor to fetch an array element that will be read soon."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

READ, KEEP, DATA = 0, 3, 1


@intrinsic
def prefetch(_context: Any, array: Any, index: Any, offset: Any) -> Any:
    """Start loading the cache line `offset` bytes into array[index]; never fails, changes nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0])
        at = [context.cast(builder, arguments[1], signature.args[1], types.intp)]
        at += [context.get_constant(types.intp, 0)] * (array_type.ndim - 1)
        pointer = cgutils.get_item_pointer(context, builder, array_type, data, at, wraparound=False)
        pointer = builder.bitcast(pointer, ir.PointerType(ir.IntType(8)))
        pointer = builder.gep(pointer, [arguments[2]], source_etype=ir.IntType(8))
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(READ), i32(KEEP), i32(DATA)])
        return context.get_dummy_value()

    return types.void(array, index, offset), generate
