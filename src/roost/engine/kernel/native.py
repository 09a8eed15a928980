"""How the functions of kernels become native code: `entry`, `asked` and `inside`, instead of Numba's plain `njit`.

    entry    Python calls it
    asked    compiled code calls it by its address
    inside   compiled code that is linked into one of the other two, and nothing by itself
    ruled    the same, of a rule

Numba optimises each function by itself, makes machine code of it, and does both again within whatever calls it. Of what
is only ever a part of others that is a third of the time that a policy takes to compile, for nothing: so it is not done
for them. To call one of them from Python is a TypeError.

Nothing in kernels makes an array, so references to them need not be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

PLAIN: dict[str, Any] = {"_nrt": False}
BARE: dict[str, Any] = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True}
ENTRY: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True}


class SettledFlags(Flags):
    """Flags that change no more: Numba asks for their hash at each expression, and works it out anew every time."""

    __slots__ = ("_hash",)

    def __init__(self, flags: Flags) -> None:
        super().__init__(flags)  # type: ignore[no-untyped-call]
        self._hash: int = hash(Flags(flags))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))  # type: ignore[no-untyped-call]

    def copy(self) -> SettledFlags:
        """The same: there is nothing to keep apart."""
        return self


_settled: dict[Flags, SettledFlags] = {}


class CalledWhole(CompilerBase):
    """Compiles a function that is called."""

    lowering: Any = NativeLowering

    def __init__(self, typing: Any, target: Any, library: Any, args: Any, returned: Any, flags: Any, of: Any) -> None:
        settled = _settled.setdefault(flags, SettledFlags(flags))
        super().__init__(typing, target, library, args, returned, settled, of)  # type: ignore[no-untyped-call]

    def define_pipelines(self) -> list[Any]:
        """As Numba does it, but for the last step."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(self.lowering if each is NativeLowering else each, why) for each, why in passes.passes]
        return [passes]


@register_pass(mutates_CFG=True, analysis_only=False)
class LoweringOfParts(NativeLowering):
    """Makes of a function what can be linked into another one: no machine code."""

    _name = "lowering_of_parts"

    def run_pass(self, state: Any) -> bool:
        """Lower it, and let others find it."""
        library = state.library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        library._optimize_final_module = lambda: None
        library._finalize_final_module = lambda: setattr(library, "_finalized", True)
        settled, state.flags = state.flags, Flags(state.flags)
        state.flags.no_compile = True
        super().run_pass(state)  # type: ignore[no-untyped-call]
        state.flags, instead = settled, [].clear  # Numba finds a function by one that Python can call: each has its own
        state["cr"] = state.cr._replace(cfunc=instead)
        state.targetctx.insert_user_function(instead, state.cr.fndesc, [library])
        return True


class LinkedPart(CalledWhole):
    """Compiles a function that becomes part of others."""

    lowering = LoweringOfParts


entry = njit(cache=True, pipeline_class=CalledWhole, **ENTRY)
asked = njit(cache=True, pipeline_class=CalledWhole, **PLAIN, **BARE)
inside = njit(pipeline_class=LinkedPart, **PLAIN, **BARE)
# With NumPy's errors a division by zero becomes a score outside 0 to 1, which is caught. A rule may make arrays.
ruled = njit(pipeline_class=LinkedPart, error_model="numpy", **BARE)


class Direct:
    """A compiled entry that Python calls again and again with the same types of arguments.

    `call` goes without Numba's look at the type of each argument from the second time on: with a few arrays, that look
    takes ten times as long as to hand them over.
    """

    __slots__ = ("_entry", "call")

    def __init__(self, entry: Callable[..., Any]) -> None:
        self._entry = entry
        self.call: Callable[..., Any] = self._first

    def _first(self, *arguments: Any) -> Any:
        """Have it compiled, or loaded, for these types."""
        result = self._entry(*arguments)
        compiled = list(self._entry.overloads.values())  # type: ignore[attr-defined]
        self.call = compiled[0].entry_point if len(compiled) == 1 else self._entry
        return result
