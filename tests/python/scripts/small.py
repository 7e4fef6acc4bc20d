"""A small network and batches for the scripts of this folder, which know nothing of reprise."""

import torch


def network(width=96, layers=6):
    torch.manual_seed(5)
    parts = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU(), torch.nn.Dropout(0.1))
             for _ in range(layers)]
    return torch.nn.Sequential(*parts, torch.nn.Linear(width, 1))


def batch(rows=512, width=96):
    x = torch.randn(rows, width)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model, rows=512):
    x, y = batch(rows)
    return torch.nn.functional.mse_loss(model(x), y)
