"""The small transformer of the block benchmarks, operator for operator that of benchmarks/blocks.cpp.

Both sides of a comparison must do the same work: this file and its C++ twin call the same
functions in the same order on the same shapes, so that a difference in time or memory is the
framework's, not the model's.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A pre-norm block: unfused attention without a mask, GELU network of four times the width."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def drop(self, x):
        return F.dropout(x, self.dropout, True) if self.dropout > 0 else x

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        scores = q.matmul(k.transpose(2, 3)) * (1 / math.sqrt(width // self.heads))
        mixed = self.drop(scores.softmax(3)).matmul(v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


def make_blocks(count, width, heads, dropout):
    torch.manual_seed(0)
    return [Block(width, heads, dropout) for _ in range(count)]
