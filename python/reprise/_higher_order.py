"""Operators of torch that call functions (torch.cond, scan, flex_attention, ...), inside steps and regions.

torch chooses their kernels in Python, by the highest key of the thread, and has none for the keys by which calls are
diverted to reprise. It passes these by now. The operators that the functions call are recorded as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _ops

# See src/libtorch/operators/operator_interceptor.h, and kEffectKey in src/libtorch/base/backends_only.h.
_DIVERTING = ("Fake", "CustomRNGKeyId", "TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper")


def install() -> None:
    """Once, for the operators that there are and for those that come."""
    operators: Any = _ops
    keys = [torch._C._parse_dispatch_key(name) for name in _DIVERTING]
    operators._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.extend(keys)
    for operator in operators._higher_order_ops.values():
        for key in keys:
            if key not in operator.py_kernels:
                operator.fallthrough(key)
