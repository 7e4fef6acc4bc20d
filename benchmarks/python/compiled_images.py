"""Networks for images, beside torch.compile: gradients of random ones, in both layouts and with several norms, and least bytes of timm's."""

import random

import torch
from torch import nn
from torch.nn import functional as F

from budgets import peak_of
from compiled_models import NETWORKS, Compiled, smallest, torch_compile
from compiled_random import compare, report
from models import same

COUNT, CHANNELS, SIZE = 6, 8, 16
NORMS = {"batch": nn.BatchNorm2d, "group": lambda channels: nn.GroupNorm(2, channels),
         "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True), "layer": nn.LayerNorm}
FUNCTIONS = ("relu", "silu", "gelu", "hardswish", "leaky_relu", "tanh", "softplus", "mish", "elu")


class Block(nn.Module):
    def __init__(self, kind, function, norm):
        super().__init__()
        self.kind, self.function, self.is_last = kind, getattr(F, function), norm == "layer"
        self.norm, self.one, self.point = NORMS[norm](CHANNELS), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.each, self.both = nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS), nn.Conv2d(2 * CHANNELS, CHANNELS, 1)
        self.more, self.larger = nn.Conv2d(CHANNELS, 4 * CHANNELS, 1), nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)
        self.line = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        return getattr(self, self.kind)(x)

    def normed(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.is_last else self.norm(x)

    def residual(self, x):
        return self.function(x + self.normed(self.point(self.function(self.one(x)))))

    def norms_first(self, x):
        return x + F.dropout2d(self.one(self.function(self.normed(x))), 0.1)

    def depthwise(self, x):
        return x + self.point(self.function(self.normed(self.each(x))))

    def squeezes(self, x):
        y = self.function(self.normed(self.one(x)))
        return x + y * self.line(F.adaptive_avg_pool2d(y, 1).flatten(1)).sigmoid()[:, :, None, None]

    def joins(self, x):
        return self.both(torch.cat([x, self.larger(self.function(self.normed(self.one(F.max_pool2d(x, 2)))))], 1))

    def resizes(self, x):
        y = F.interpolate(self.one(F.avg_pool2d(x, 2)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.normed(self.function(x * 0.5 + y))

    def shuffles(self, x):
        return x + self.point(self.normed(F.pixel_shuffle(self.more(F.avg_pool2d(x, 2)), 2)))

    def attends(self, x):
        tokens = self.normed(x).flatten(2).mT
        query, value = (each.unflatten(2, (2, -1)).transpose(1, 2) for each in (self.line(tokens), tokens))
        return x + F.scaled_dot_product_attention(query, query, value).transpose(1, 2).flatten(2).mT.reshape(x.shape)

    def skips(self, x):
        return x + self.function(self.normed(self.one(x))) * (torch.rand(len(x), 1, 1, 1) > 0.2) / 0.8

    def pools(self, x):
        y = F.interpolate(F.adaptive_max_pool2d(self.one(x), 4), size=x.shape[2:])
        return self.function(self.normed(x + y + F.adaptive_avg_pool2d(x, 2).mean((2, 3), keepdim=True)))

    def pads(self, x):
        return self.normed(self.function(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.one.weight)))


KINDS = ("residual", "norms_first", "depthwise", "squeezes", "joins", "resizes", "shuffles", "attends", "skips", "pools", "pads")


class Images(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.layout = draw.choice((torch.contiguous_format, torch.channels_last))
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(draw.choice(KINDS), draw.choice(FUNCTIONS), draw.choice(list(NORMS)))
                                      for _ in range(draw.randint(2, 3))))
        self.size = draw.choice((1, 2, SIZE))
        self.out = nn.Linear(CHANNELS * self.size ** 2, 5)

    def forward(self, images):
        x = F.adaptive_avg_pool2d(self.blocks(self.first(images)), self.size).flatten(1)
        return F.cross_entropy(self.out(x), torch.arange(len(x)) % 5)


def step_of(call, model, count=2):
    """Losses and gradients of two steps."""
    images = torch.linspace(-1, 1, COUNT * 3 * SIZE ** 2).sin().view(COUNT, 3, SIZE, SIZE).to(memory_format=model.layout)
    found = []
    for at in range(count):
        torch.manual_seed(at)
        loss = call(images)
        loss.backward()
        found += [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        model.zero_grad()
    return found


def images(figures, quick):
    """Networks for images whose losses or gradients are not those of torch.compile to the bit."""
    seeds = range(1 if quick else 12)
    report(figures, "python_compiled_images", "inductor", {seed: compare(seed, "inductor", Images, step_of) for seed in seeds})


def networks(figures, quick):
    """The least peak of timm's networks, by that of torch.compile; the gradients are the same to the bit."""
    for name in ["mobilenetv3_small_100"] if quick else NETWORKS:
        torch._dynamo.reset()
        default = Compiled(name, torch_compile, NETWORKS)
        expected, peak = default.gradients(), peak_of(default)
        ours = smallest(name, NETWORKS)
        if not same(ours.gradients(), expected):
            raise SystemExit(f"python_compiled_networks: {name}: gradients are not those of torch.compile")
        figures.add("python_compiled_networks", f"{name}: default", [peak / 1e6], "MB")
        figures.add("python_compiled_networks", f"{name}: least", [peak_of(ours) / peak], "x default", bar=1.0)


BENCHES = {"python_compiled_images": images, "python_compiled_networks": networks}
