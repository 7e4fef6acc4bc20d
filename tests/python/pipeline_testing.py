"""What the tests of pipelines share: models, and a plain loop over the same micro-batches."""

import contextlib

import torch
from torch import nn

import reprise

TWO = ["cpu", "cpu"]


def blocks(count, dropout=0.3):
    torch.manual_seed(1)
    return nn.Sequential(*[
        layer for _ in range(count)
        for layer in (nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Dropout(dropout), nn.Tanh())])


def outcome(model, loss):
    """Loss, gradients and buffers; the gradients are dropped."""
    found = [loss.detach(), *[p.grad for p in model.parameters()], *[b.clone() for b in model.buffers()]]
    model.zero_grad()
    return found


def same(found, expected):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def order_of(schedule):
    """The micro-batches in the order in which their gradients reach the parameters of every stage."""
    orders = {}
    for action in (action for worker in schedule.workers for slot in worker for action in slot):
        if action.work in "BW":
            orders.setdefault(action.stage, []).append(action.micro_batch)
    first = orders.pop(0)
    assert all(order == first for order in orders.values())
    return first


def plain_step(model, x, target, schedule, chunks, loss=nn.functional.mse_loss):
    """Each micro-batch through all layers, and then backward, one after another."""
    seed = reprise.seed_of_pipeline()
    losses, total = [], 0
    for i, (part, expected) in enumerate(zip(x.chunk(chunks), target.chunk(chunks))):
        for index, layer in enumerate(model):
            with reprise.DrawsOfLayer(seed, i, index):
                part = layer(part)
        losses.append((loss(part, expected), len(expected) / len(target)))
        total = total + losses[-1][0].detach() * losses[-1][1]
    for i in order_of(schedule):
        value, weight = losses[i]
        value.backward(torch.full_like(value, weight))
    return outcome(model, total)


def check_step(model, x, target, chunks, loss=nn.functional.mse_loss, scope=contextlib.nullcontext, **options):
    pipe = reprise.Pipeline(model, chunks=chunks, **options)
    torch.manual_seed(2)
    with scope():
        expected = plain_step(model, x, target, pipe.schedule(len(x.chunk(chunks))), chunks, loss)
    torch.manual_seed(2)
    assert same(outcome(model, pipe.step(x, target, loss).loss), expected), options
    return pipe


class Returns(nn.Module):
    """Returns what it was made with, or calls it if it can."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value(x) if callable(self.value) else self.value
