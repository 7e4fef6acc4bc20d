"""The private parts of torch that the package uses, in one place and without types."""

from __future__ import annotations

from types import CodeType
from typing import Any

from torch._C._dynamo import eval_frame
from torch._dynamo import guards as _guards
from torch._dynamo import symbolic_convert as _symbolic_convert
from torch._dynamo.backends import common as _common
from torch._functorch import partitioners as _partitioners
from torch._functorch._aot_autograd import descriptors as _descriptors

InputMutationAOTOutput: Any = _descriptors.InputMutationAOTOutput
InstructionTranslator: Any = _symbolic_convert.InstructionTranslator
common: Any = _common
partitioners: Any = _partitioners
reset_code: Any = eval_frame.reset_code


def forget(code: CodeType, compilations: set[Any]) -> None:
    """Of what was compiled of that code, the graphs of these compilations are compiled anew when they are next called."""
    entries: Any = eval_frame._debug_get_cache_entry_list(code)
    if all(each.code is None or each.compile_id in compilations for each in entries):
        reset_code(code)  # so that nothing counts for torch's recompile_limit
        return
    guards: Any = _guards
    for each in entries:
        if each.code is not None and each.compile_id in compilations:
            each.guard_manager.extra_state.invalidate(each, guards.DeletedGuardManagerWrapper("planned again"))
