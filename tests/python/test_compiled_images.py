"""Networks for images under inductor, which lays out their results for convolutions."""

import pytest
import reprise
import torch
from torch import nn
from torch.nn import functional as F

from test_compiled import fresh  # noqa: F401
from test_compiled_layouts import check_bits


class Pooled(nn.Module):
    """A residual network, whose last result is handed over and read by an operator that computes otherwise in another layout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        convolutions = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(6))
        self.first, self.layers = nn.Conv2d(4, 8, 3, padding=1), nn.ModuleList(nn.Sequential(each, nn.BatchNorm2d(8)) for each in convolutions)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        x = self.first(x.view(2, 4, 16, 16))
        for one, two in zip(self.layers[::2], self.layers[1::2]):
            x = (x + two(one(x).relu())).relu()
        return self.out(F.adaptive_avg_pool2d(x, 2).flatten(1)).square().mean()


class Depthwise(nn.Module):
    """A plan's backward that runs a convolution again has results in channels-last layout, which the default's backward has not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norms = nn.ModuleList(nn.GroupNorm(2, 8) for _ in range(2))
        self.first, self.one = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.each, self.mix = nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.first(x.view(2, 4, 16, 16).to(memory_format=torch.channels_last))
        x = x + F.dropout2d(self.one(F.silu(self.norms[0](x))), 0.1)
        return (x + self.mix(F.leaky_relu(self.norms[1](self.each(x))))).square().mean()


class Joined(nn.Module):
    """A sum reads images, some of which forward hands over in another layout than they have in memory in the default's backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.first, self.one = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.larger, self.both, self.line = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 8, 1), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x.view(2, 4, 16, 16))
        y = self.norms[0](self.one(F.max_pool2d(x, 2)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.both(torch.cat([x, self.larger(F.silu(y))], 1))
        tokens = self.norms[1](x.permute(0, 2, 3, 1)).flatten(1, 2)
        query, value = (each.unflatten(2, (2, -1)).transpose(1, 2) for each in (self.line(tokens), tokens))
        y = F.scaled_dot_product_attention(query, query, value).transpose(1, 2).flatten(2).mT
        return (x + y.reshape(x.shape)).square().mean()


def convolution(count, channels):
    return nn.Sequential(nn.Conv2d(count, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))


class Stem(nn.Module):
    """Gradients are added up at the places of windows that overlap. A plan that had their indices in memory would add them up otherwise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.layers = convolution(4, 16), nn.ModuleList(convolution(16, 16) for _ in range(6))
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        x = F.max_pool2d(self.first(x.view(-1, 4, 16, 16)).relu(), 3, 2, 1)
        for one, two in zip(self.layers[::2], self.layers[1::2]):
            x = (x + two(one(x).relu())).relu()
        return self.out(x.mean((2, 3))).square().mean()


class Dense(nn.Module):
    """The last norm reads joined images, which forward hands over in a layout that is not the graph's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 * count) for count in range(1, 5))
        self.layers = nn.ModuleList(nn.Conv2d(count, 16, 3, padding=1) for count in (4, 16, 32, 48))
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        parts = [self.layers[0](x.view(-1, 4, 16, 16))]
        for norm, layer in zip(self.norms, self.layers[1:]):
            parts.append(layer(norm(torch.cat(parts, 1)).relu()))
        return self.out(self.norms[3](torch.cat(parts, 1)).relu().mean((2, 3))).square().mean()


class Weights(nn.Sequential):
    """Most bytes are weights. By default forward hands over copies of them in the layout that convolutions read."""

    def __init__(self):
        torch.manual_seed(3)
        layers = (nn.Sequential(convolution(count, 64), nn.ReLU()) for count in (4, 64, 64, 64, 64))
        super().__init__(nn.Unflatten(1, (4, 4, 2)), *layers)

    def forward(self, x):
        return super().forward(x).square().mean()


class Returned(nn.Module):
    """The result of the last convolution is the caller's. A plan has what that reads in another layout than the graph's."""

    def __init__(self, *end):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(count, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU()) for count in (4, 8, 16))
        self.out = nn.Sequential(nn.Conv2d(8, 4, 1), *end)

    def forward(self, x):
        first = self.layers[0](x.view(-1, 4, 16, 16))
        inner = F.interpolate(self.layers[1](F.max_pool2d(first, 2)), scale_factor=2)
        return self.out(F.dropout2d(self.layers[2](torch.cat((first, inner), 1)), 0.1))


class Embedded(nn.Module):
    """Inductor orders this backward anew, and takes most gradients of weights from their convolutions at the end of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        widths = [16, 32] * 4 + [16]
        self.embedding = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "first": nn.Sequential(nn.GroupNorm(4, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)),
            "time": nn.Linear(64, after), "second": nn.Sequential(nn.GroupNorm(4, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)),
            "skip": nn.Conv2d(before, after, 1)}) for before, after in zip(widths, widths[1:]))
        self.larger = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        x = x.view(-1, 16, 16, 16)
        time = self.embedding(x.mean((2, 3)))
        for block in self.blocks:
            y = block["first"](x) + block["time"](F.silu(time))[:, :, None, None]
            x = block["skip"](x) + block["second"](y)
        return self.larger(F.interpolate(x, scale_factor=2.0)[:, :, :16, :16]).square().mean()


def test_results_of_an_operator_are_freed_one_by_one():
    call = reprise.compile(Embedded(), memory_budget="65%")
    for _ in range(2):
        call.zero_grad()
        call(torch.randn(4, 16, 16, 16, requires_grad=True)).backward()
    (graph,) = call.memory_budget.report()
    assert graph.measured_peak and graph.measured_peak <= 1.01 * graph.predicted_peak


@pytest.mark.parametrize("end", [(), (nn.Sigmoid(),)], ids=["", "handed over too"])
def test_results_have_the_strides_of_the_default(end):
    """What the caller computes of them adds up in the order in which they lie in memory."""
    strides = set()

    def loss_of(result):
        strides.add(result.stride())
        return result.mul(torch.linspace(-1, 1, result.numel()).view(result.shape)).sum()

    check_bits(Returned(*end), (85,), 8192, loss_of)
    assert len(strides) == 1


@pytest.mark.parametrize("make, share, count", [
    (Pooled, 85, 2048), (Depthwise, 95, 2048), (Joined, 97, 2048), (Stem, 93, 16384), (Dense, 85, 2048), (Weights, 85, 512),
    (Embedded, 65, 16384)])
def test_losses_and_gradients_have_the_bits_of_the_default(make, share, count):
    check_bits(make(), (share,), count)
