"""Trains a network of networks.py in Python under one strategy, torch's or the package's. Prints one JSON object a step: ms,
loss, peak_bytes and, on a GPU, reserved_bytes; a last one has the plans of compiled graphs. With --on-demand it gives back what
the allocator holds after --steps steps, prints {"waits": true}, and does so again after as many steps as a line of its input says.

| case | strategy |
| --- | --- |
| plain | |
| every-block, selective | torch.utils.checkpoint, not reentrant; selective keeps matrix products and attention |
| compile:R | torch.compile with activation_memory_budget R, 1 for its default |
| compile-every-block, compile-selective | torch.compile of these checkpoints |
| budget:BYTES | reprise.MemoryBudget of all that the step does, the optimizer included |
| reprise-compile:BYTES | reprise.compile with memory_budget BYTES |
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from networks import NETWORKS, VOCABULARY

KEPT = [getattr(torch.ops.aten, name).default for name in (
    "mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu") if hasattr(torch.ops.aten, name)]
CASES = ("plain", "every-block", "selective", "compile:R", "compile-every-block", "compile-selective", "budget:BYTES",
         "reprise-compile:BYTES")


def contexts():
    return create_selective_checkpoint_contexts(KEPT)


def call_of(case):
    """How a block is called."""
    if case.endswith("every-block"):
        return functools.partial(checkpoint, use_reentrant=False)
    if case.endswith("selective"):
        return functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    return lambda block, *inputs: block(*inputs)


def prepared(network, case, device):
    """The model as it is called, and what the step runs in."""
    kind, _, amount = case.partition(":")
    if kind == "budget":
        import reprise
        return network, reprise.MemoryBudget(amount, device=device).step
    if kind == "reprise-compile":
        import reprise
        return reprise.compile(network, memory_budget=amount, device=device), contextlib.nullcontext
    if kind == "compile":
        import torch._functorch.config as config
        config.activation_memory_budget = float(amount)
    return torch.compile(network) if kind.startswith("compile") else network, contextlib.nullcontext


def plans(case):
    """Of the compiled graphs, as objects."""
    if not case.startswith("reprise-compile"):
        return []
    import reprise.compiled
    return [dataclasses.asdict(each) for each in reprise.compiled.report()]


class Meter:
    """Waits for the device, and reads the allocator's peaks since the last call. A budget starts the allocator's own peak anew
    inside a step, so that the package's meter is read then."""

    def __init__(self, device, case):
        self.on_gpu, self.scope = device.type == "cuda", None
        if self.on_gpu and case.startswith(("budget", "reprise-compile")):
            import reprise
            self.scope = reprise.PeakScope(device)

    def start(self):
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        if self.scope:
            self.scope.__enter__()
        return time.perf_counter()

    def stop(self, start):
        if self.on_gpu:
            torch.cuda.synchronize()
        figures = {"ms": 1000 * (time.perf_counter() - start)}
        if self.on_gpu:
            peak = self.scope.peak if self.scope else torch.cuda.max_memory_allocated()
            figures.update(peak_bytes=peak, reserved_bytes=torch.cuda.max_memory_reserved())
        return figures


def counts(options):
    """Of steps that run without a pause."""
    yield options.steps
    if options.on_demand:
        wait()
        for line in sys.stdin:
            yield int(line)
            wait()


def wait():
    torch.cuda.empty_cache()
    print(json.dumps({"waits": True}), flush=True)


def train(options):
    torch.manual_seed(1)
    device = torch.device(options.device)
    network = NETWORKS[options.network](options.layers, options.width, options.heads, options.context, call_of(options.case))
    model, step = prepared(network.to(device), options.case, device)
    # One kernel after the other, as LibTorch's C++ optimizer.
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    meter = Meter(device, options.case)
    for _ in (step for count in counts(options) for step in range(count)):
        tokens = torch.randint(VOCABULARY, (options.batch, options.context + 1)).to(device)
        start = meter.start()
        with step():
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps({**meter.stop(start), "loss": loss.item()}), flush=True)
    print(json.dumps({"graphs": plans(options.case)}), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="tools/gpu/peers.py")
    parser.add_argument("--case", required=True)
    parser.add_argument("--network", choices=NETWORKS, default="gpt")
    for name in ("layers", "width", "heads", "context", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--on-demand", action="store_true")
    options = parser.parse_args()
    kinds = {each.partition(":")[0]: ":" in each for each in CASES}
    kind, separator, amount = options.case.partition(":")
    if kinds.get(kind) != bool(separator and amount):
        parser.error(f"there is no case '{options.case}'; give one of {', '.join(CASES)}")
    train(options)


if __name__ == "__main__":
    main()
