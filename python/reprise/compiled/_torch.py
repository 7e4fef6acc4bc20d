"""The private parts of torch that the package uses, in one place and without types."""

from __future__ import annotations

from typing import Any

from torch._C._dynamo import eval_frame
from torch._dynamo import symbolic_convert as _symbolic_convert
from torch._dynamo.backends import common as _common
from torch._functorch import partitioners as _partitioners
from torch._functorch._aot_autograd import descriptors as _descriptors

InputMutationAOTOutput: Any = _descriptors.InputMutationAOTOutput
InstructionTranslator: Any = _symbolic_convert.InstructionTranslator
common: Any = _common
partitioners: Any = _partitioners
reset_code: Any = eval_frame.reset_code
