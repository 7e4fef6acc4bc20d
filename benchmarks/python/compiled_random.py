"""Random models with dropout, views, writes in place, several outputs and custom operators: gradients beside the default's."""

import contextlib
import random
import re
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import reprise

ROWS, WIDTH, HEADS = 64, 32, 4


@torch.library.custom_op("reprise_bench::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


scaled.register_fake(lambda x, factor: torch.empty_like(x))
def keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


scaled.register_autograd(lambda ctx, gradient: (scaled(gradient, ctx.factor), None), setup_context=keep_factor)


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.one, self.other = kind, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x):
        return x + getattr(self, self.kind)(self.norm(x))

    def drops(self, x):
        return F.dropout(self.other(F.gelu(self.one(x))), 0.2)

    def views(self, x):
        parts = self.one(x).view(ROWS, HEADS, -1).transpose(0, 1).chunk(2, 2)
        return torch.cat([parts[1].tanh(), parts[0].sigmoid()], 2).transpose(0, 1).reshape(ROWS, WIDTH)

    def writes(self, x):
        y = self.one(x).mul_(0.5).add_(x)
        y[:, ::2].exp_()
        with torch.no_grad():
            self.seen.add_(y.sum(0))
        return self.other(y.clamp(-3, 3))

    def attends(self, x):
        q, k, v = (each.view(1, ROWS, HEADS, -1).transpose(1, 2) for each in (self.one(x), self.other(x), x))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).transpose(1, 2).reshape(ROWS, WIDTH)

    def custom(self, x):
        return scaled(torch.relu(self.one(x)), 1.5).softmax(1)

    def noise(self, x):
        return self.other(F.rrelu(self.one(x), training=True) * torch.rand_like(x))


KINDS = ("drops", "views", "writes", "attends", "custom", "noise")


class Random(nn.Module):
    """Returns several outputs; one of them needs no gradient."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.layers = nn.ModuleList(Layer(draw.choice(KINDS)) for _ in range(draw.randint(3, 6)))
        self.middle = draw.randrange(len(self.layers))

    def forward(self, x):
        middle = x
        for at, layer in enumerate(self.layers):
            x = layer(x)
            middle = x if at == self.middle else middle
        return x.square().mean(), middle, x.argmax(1)


def step_of(call, model, count=2):
    """All that two steps give: losses, gradients, buffers."""
    x = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)
    found = []
    for at in range(count):
        torch.manual_seed(at)
        loss, middle, _ = call(x)
        (loss + middle.sin().mean()).backward()
        found += [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        found += [each.clone() for each in model.buffers()]
        model.zero_grad()
    return found


def least_of(error):
    """The bytes that a BudgetError names as the least."""
    return int(re.search(r"at least .*?[(]([0-9]+) bytes[)]", str(error))[1])


def compare(seed, backend, make=Random, step_of=step_of):
    """The largest difference by the largest value, in the smallest of three budgets that the model can keep to; 0.0 for
    the same bits, None where it can keep to none."""
    def run(compile):
        torch._dynamo.reset()
        model = make(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step_of(compile(model), model)

    expected = run(lambda model: torch.compile(model, backend=backend, dynamic=False))
    for share in ("70%", "85%", "97%"):
        with contextlib.suppress(reprise.BudgetError):
            found = run(lambda model: reprise.compile(model, memory_budget=share, backend=backend))
            largest = max(each.abs().max() for each in expected)  # gradients that are zero but for rounding have no scale
            return max(0.0 if torch.equal(a, b) else ((a - b).abs().max() / largest).item()
                       for a, b in zip(found, expected, strict=True))
    return None


def gradients(figures, quick):
    """Models whose losses, gradients or buffers are not those of torch.compile to the bit."""
    for backend, count in (("aot_eager", 3 if quick else 150), ("inductor", 1 if quick else 50)):
        report(figures, "python_compiled_gradients", backend, {seed: compare(seed, backend) for seed in range(count)})


def report(figures, bench, backend, found):
    """`found`: what `compare` gives, by seed."""
    planned = [each for each in found.values() if each is not None]
    wrong = [seed for seed, each in found.items() if each]
    case = f"{len(planned)} planned models of {len(found)}, {backend}"
    figures.add(bench, f"{case}: not bitwise" + (f", seeds {wrong}" if wrong else ""), [len(wrong)], "models", bar=0)
    figures.add(bench, f"{case}: largest difference", [max(planned, default=0.0)], "of the largest value")


BENCHES = {"python_compiled_gradients": gradients}
