"""Calling a policy's compiled functions by their address, from code that is compiled once for all policies.

`choosing` calls them as `ask_<name>`, with the list of their addresses first; `addresses` is that list for the
kernel of one policy. Both sides take their types from `signatures`, so that they cannot disagree.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from roost.engine.side_tables import TABLES
from roost.engine.tenant_row import TENANT_TYPE
from roost.engine.view import LINK_TYPE
from roost.model.errors import InvariantBroken
from roost.model.zone import Zone

CHOOSING = ("cluster_key", "refresh_cluster", "tenant_refusal")  # what choosing a machine asks
ASKED = (*CHOOSING, "judge_one")  # the same, and what comparing another with it asks


def signatures(zone: Zone, vm_type: np.dtype[np.void]) -> dict[str, Any]:
    """The signature of every function that is called by its address, for rows of these types."""
    machines, racks, clusters, links, tenant = (
        numba.typeof(np.empty(0, each))
        for each in (zone.machines.dtype, zone.racks.dtype, zone.clusters.dtype, LINK_TYPE, TENANT_TYPE)
    )
    cluster, vm = clusters.dtype, numba.typeof(np.empty(0, vm_type)).dtype
    number, numbers, table = types.int64, types.int64[::1], types.int64[:, ::1]
    columns, counts = types.float64[:, ::1], types.int32[::1]
    rows = (machines, racks, clusters)
    data = data_type(zone)
    derived = (columns, table, numbers, table, data)  # columns, column_seen, slots, tally, data
    evaluation = (numbers, table, table)  # keys, rack_sums, cluster_sums
    return {
        "cluster_key": number(cluster, vm, data),
        "refresh_cluster": types.UniTuple(number, 2)(number, *rows, links, numbers, vm, *evaluation, *derived),
        "tenant_refusal": number(number, *rows, tenant, counts, data),
        "judge_one": types.UniTuple(number, 4)(
            number, *rows, links, numbers, vm, *derived, tenant, counts, types.boolean
        ),
    }


def data_type(zone: Zone) -> Any:
    """What rules are given besides rows: the numbers of a policy, and side tables."""
    tables = [numba.typeof(np.empty(0, table.row_type(zone))) for table in TABLES]
    return types.Tuple((types.float64[::1], *tables))


def askers(of: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """For the functions of these signatures, what calls them: `ask_<name>(addresses, …)`."""
    return {f"ask_{name}": _asker(ASKED.index(name), signature) for name, signature in of.items()}


@cache
def addresses(kernel: ModuleType, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Where a kernel's functions are; zero for those that are not among the names. Compiles them, or loads them."""
    found = np.zeros(len(ASKED), np.int64)
    for name in names:
        function, signature = getattr(kernel, name), kernel.ASKED[name]
        function.compile(signature.args)
        compiled = function.overloads[signature.args]
        if compiled.signature.return_type != signature.return_type:
            raise InvariantBroken(f"{name} of the kernel returns {compiled.signature.return_type}")
        found[ASKED.index(name)] = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return found


def _asker(place: int, asked: Any) -> Callable[..., Any]:
    """A compiled call of the function whose address has this place in the list."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        address = builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), place)]))
        kind = context.call_conv.get_function_type(asked.return_type, asked.args)
        function = builder.inttoptr(address, ir.PointerType(kind))
        arguments = cgutils.unpack_tuple(builder, values[1])
        status, result = context.call_conv.call_function(builder, function, asked.return_type, asked.args, arguments)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return result

    @intrinsic
    def ask(_context: Any, addresses: Any, *_arguments: Any) -> Any:
        return asked.return_type(addresses, types.StarArgTuple.from_types(asked.args)), generate

    return ask
