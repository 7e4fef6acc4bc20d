"""torch's operators in a small step, with torch's own samples: losses and gradients in the least bytes, beside the default's."""

import warnings

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import reprise
from compiled_random import least_of

ROWS, WIDTH = 32, 64
BITWISE, WRONG, FAILED = "bitwise", "not bitwise", "failed in planning"


class Around(torch.nn.Module):
    """Layers, the operator, and layers after each of its results; the operator's arguments depend on the layers before it."""

    def __init__(self, operator, sample):
        super().__init__()
        torch.manual_seed(0)
        self.operator = operator
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.at = [at for at, each in enumerate(self.leaves) if isinstance(each, torch.Tensor)]
        self.tensors = [self.leaves[at].detach().clone() for at in self.at]
        self.needs_gradient = [self.leaves[at].requires_grad for at in self.at]
        self.leaves = [None if at in self.at else each for at, each in enumerate(self.leaves)]
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.x = torch.randn(ROWS, WIDTH)

    def layer(self, x):
        return F.gelu(x @ self.weight)

    def forward(self, *tensors):
        x = self.layer(self.layer(self.layer(self.x)))
        leaves = list(self.leaves)
        for at, each, needs_gradient in zip(self.at, tensors, self.needs_gradient, strict=True):
            count = min(each.numel(), x.numel())
            zeros = F.pad(x.flatten()[:count] * 0, (0, each.numel() - count)).view(each.shape)
            leaves[at] = each + zeros if needs_gradient else each
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        for each in pytree.tree_leaves(self.operator(first, *args, **kwargs)):
            if not isinstance(each, torch.Tensor) or not (each.is_floating_point() or each.is_complex()):
                continue
            each = torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
            count = min(each.numel(), x.numel())
            x = self.layer(x + F.pad(each.float().flatten()[:count], (0, x.numel() - count)).view(x.shape).tanh())
        return self.layer(self.layer(self.layer(x))).square().sum()


def step_of(call, model):
    """Losses and gradients of two steps."""
    found, model.weight.grad = [], None
    for at in range(2):
        torch.manual_seed(at)
        inputs = [each.clone().requires_grad_(needs) for each, needs in zip(model.tensors, model.needs_gradient, strict=True)]
        loss = call(*inputs)
        loss.backward()
        found += [loss.detach(), model.weight.grad, *(each.grad for each in inputs)]
        model.weight.grad = None
    return found


def in_least_bytes(model, backend):
    """What two steps give, in the bytes that reprise names as the least; None where it has no plan or refuses the operator."""
    asked = "+1KiB"
    for _ in range(6):  # a later step has gradients of the first beside it
        torch._dynamo.reset()
        try:
            return step_of(reprise.compile(model, memory_budget=asked, backend=backend, fullgraph=True), model)
        except reprise.BudgetError as error:
            asked = least_of(error)
        except reprise.Error:
            return None
    return None


def same(found, expected):
    """Of NaN all are the same."""
    return all((a is None) == (b is None) and (a is None or torch.equal(a.nan_to_num(0.125), b.nan_to_num(0.125)))
               for a, b in zip(found, expected, strict=True))


def judge(operator, backend):
    """BITWISE, WRONG, FAILED, or why the operator's largest sample says nothing."""
    samples = list(operator.sample_inputs("cpu", torch.float32, requires_grad=True))
    sample = max(samples, key=lambda each: sum(leaf.numel() for leaf in pytree.tree_leaves((each.input, each.args, each.kwargs))
                                               if isinstance(leaf, torch.Tensor)))
    model = Around(operator.op, sample)

    def default():
        torch._dynamo.reset()
        return step_of(torch.compile(model, backend=backend, fullgraph=True), model)

    try:
        expected = default()
    except Exception:  # noqa: BLE001: whatever torch raises
        return "not compiled by torch"
    try:
        found = in_least_bytes(model, backend)
    except Exception:  # noqa: BLE001: whatever planning may meet
        return FAILED
    if found is None:
        return "not planned"
    if same(found, expected):
        return BITWISE
    return WRONG if same(default(), expected) else "not stable in torch.compile"


def differentiable():
    """torch's operators that have gradients of 32 bits on a CPU, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {each.full_name: each for each in op_db if each.supports_autograd and torch.float32 in each.supported_dtypes("cpu")}


def operators(figures, quick):
    """Operators whose losses or gradients are not those of torch.compile to the bit."""
    found = differentiable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for backend in ("aot_eager", "inductor"):
            names = ("tanh", "nn.functional.pad.reflect", "logsumexp") if quick else found
            report(figures, backend, {name: judge(found[name], backend) for name in names})


def report(figures, backend, verdicts):
    """`verdicts`: what `judge` says, by operator."""
    for verdict in sorted({*verdicts.values(), WRONG, FAILED}):
        names = [name for name, each in verdicts.items() if each == verdict]
        named = ": " + ", ".join(names) if names and verdict != BITWISE else ""
        figures.add("python_compiled_operators", f"{backend}: {len(names)} of {len(verdicts)} {verdict}{named}", [len(names)], "operators",
                    bar=0 if verdict in (WRONG, FAILED) else None)


BENCHES = {"python_compiled_operators": operators}
