"""torch's side of the part `models`: the GPT of models/gpt.cpp, operator for operator, under a strategy of torch's own. Prints
one JSON object a step: ms, loss, peak_bytes and, on a GPU, reserved_bytes.

Cases: plain; every-block (torch.utils.checkpoint, not reentrant); selective (matrix products and attention kept); compile:R
(torch.compile with activation_memory_budget R, 1 for its default).
"""

import argparse
import functools
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

VOCABULARY = 256
DROPOUT = 0.1
DEVIATION = 0.02
KEPT = [getattr(torch.ops.aten, name).default for name in (
    "mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu") if hasattr(torch.ops.aten, name)]


class Block(nn.Module):
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
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
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


def contexts():
    return create_selective_checkpoint_contexts(KEPT)


def call_of(case):
    if case == "every-block":
        return functools.partial(checkpoint, use_reentrant=False)
    if case == "selective":
        return functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    return lambda block, x: block(x)


def compiled(model, case):
    if not case.startswith("compile:"):
        return model
    import torch._functorch.config as config
    config.activation_memory_budget = float(case.split(":")[1])
    return torch.compile(model)


class Meter:
    """Waits for the device, and reads the allocator's peaks since the last call."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"

    def start(self):
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        return time.perf_counter()

    def stop(self, start):
        if self.on_gpu:
            torch.cuda.synchronize()
        figures = {"ms": 1000 * (time.perf_counter() - start)}
        if self.on_gpu:
            figures.update(peak_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())
        return figures


def train(options):
    torch.manual_seed(1)
    device = torch.device(options.device)
    network = Gpt(options.layers, options.width, options.heads, options.context, call_of(options.case)).to(device)
    model = compiled(network, options.case)
    # One kernel after the other, as LibTorch's C++ optimizer.
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    meter = Meter(device)
    for _ in range(options.steps):
        tokens = torch.randint(VOCABULARY, (options.batch, options.context + 1)).to(device)
        start = meter.start()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({**meter.stop(start), "loss": loss.item()}), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="tools/gpu/peers.py", description=__doc__)
    parser.add_argument("--case", required=True)
    for name in ("layers", "width", "heads", "context", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    if options.case not in ("plain", "every-block", "selective") and not options.case.startswith("compile:"):
        parser.error(f"there is no case '{options.case}'; give plain, every-block, selective or compile:R")
    train(options)


if __name__ == "__main__":
    main()
