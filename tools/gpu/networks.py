"""The networks of peers.py: the GPT of models/gpt.cpp, operator for operator, and one of Llama's form. Both give the loss."""

import math

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256
DROPOUT = 0.1
DEVIATION = 0.02


def heads_of(x, heads):
    """[batch, heads, length, features]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)

    def forward(self, x):
        x = x + F.dropout(self.attention_out(self.attend(self.attention_norm(x))), DROPOUT)
        return x + F.dropout(self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)))), DROPOUT)


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, call):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.call = call
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                depth = math.sqrt(2 * layers) if name.endswith("_out.weight") else 1
                nn.init.normal_(parameter, 0, DEVIATION / depth)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.token_embedding(tokens) + self.position_embedding(positions), DROPOUT)
        for block in self.blocks:
            x = self.call(block, x)
        logits = F.linear(self.final_norm(x), self.token_embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        # A quarter of the heads have keys and values.
        self.heads, self.shared, hidden = heads, max(1, heads // 4), width * 7 // 2
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * self.shared * (width // heads), bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, rotation):
        inner = self.attention_norm(x)
        keys, values = self.key_value(inner).chunk(2, -1)
        q, k = rotated(heads_of(self.query(inner), self.heads), rotation), rotated(heads_of(keys, self.shared), rotation)
        v = heads_of(values, self.shared)
        k, v = (each.repeat_interleave(self.heads // self.shared, 1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        inner = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


def rotated(x, rotation):
    """Rotary positions (Su et al., 2021); `rotation`: cosines and sines [length, features]."""
    cosines, sines = rotation
    first, second = x.chunk(2, -1)
    return x * cosines.to(x.dtype) + torch.cat((-second, first), -1) * sines.to(x.dtype)


class Llama(nn.Module):
    def __init__(self, layers, width, heads, context, call):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.final_norm, self.call = nn.RMSNorm(width), call
        features = width // heads
        angles = torch.outer(torch.arange(context), 1e4 ** (-torch.arange(0, features, 2) / features)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, DEVIATION)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.call(block, x, (self.cosines, self.sines))
        return F.cross_entropy(self.head(self.final_norm(x)).flatten(0, 1), targets.flatten())


NETWORKS = {"gpt": Gpt, "llama": Llama}
