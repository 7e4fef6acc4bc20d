"""reprise.checkpoint beside torch.utils.checkpoint: one region of one operator, and blocks of a small transformer."""

import functools
import importlib.util
import statistics
import sys
from pathlib import Path

import reprise.checkpoint as ours
import torch
import torch.utils.checkpoint as theirs
from timing import race

PEERS = Path(__file__).parents[1] / "peers"
sys.path.append(str(PEERS))

# By its path: a library has the same name.
spec = importlib.util.spec_from_file_location("peer_transformers", PEERS / "transformers.py")
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)
COARSE, FINE, MATMULS = peer.COARSE, peer.FINE, peer.MATMULS

SIDES = {"ours": ours, "peer": theirs}


def many(step, count):
    def run():
        for _ in range(count):
            step()
    return run


def region(figures, quick):
    """checkpoint(sin) on 8x8, forward and backward, beyond the plain step and the forward that it must repeat."""
    count = 200
    x, one = torch.randn(8, 8, requires_grad=True), torch.ones(8, 8)

    def backward_of(function):
        def step():
            function(x).backward(one)
            x.grad = None
        return many(step, count)

    cases = {"forward": many(lambda: torch.sin(x), count), "plain": backward_of(torch.sin)}
    for side, module in SIDES.items():
        for reentrant in (False, True):
            cases[side, reentrant] = backward_of(
                functools.partial(module.checkpoint, torch.sin, use_reentrant=reentrant))
    seconds = race(cases, 10 if quick else 40)
    for reentrant, bar in ((False, 0.2), (True, 0.4)):
        over = {side: [1e6 / count * (region - plain - forward) for region, plain, forward in zip(
            seconds[side, reentrant], seconds["plain"], seconds["forward"])] for side in SIDES}
        figures.add("python_region", "reentrant" if reentrant else "non-reentrant", over["ours"], "us",
                    statistics.median(over["peer"]), bar)


def race_of(shape, calls, rounds):
    """×plain of each call, one a round."""
    steps = {name: peer.step_of(shape, call)() for name, call in {"plain": lambda block, x: block(x), **calls}.items()}
    for step in steps.values():
        step()
    seconds = race(steps, rounds)
    return {name: [mine / plain for mine, plain in zip(seconds[name], seconds["plain"])] for name in calls}


def forward_in_backward(block, x):
    """What recomputation takes at least, beside the plain step: the same forward during backward, which nobody uses."""
    y, given = block(x), x.detach().requires_grad_()

    def again(gradient):
        with torch.enable_grad():
            block(given)

    y.register_hook(again)
    return y


def every_block(figures, quick):
    """Every block a region."""
    calls = {side: functools.partial(module.checkpoint, use_reentrant=False) for side, module in SIDES.items()}
    calls["again"] = forward_in_backward
    for case, shape, rounds in (("32 blocks of width 64", FINE, 60), ("8 blocks of width 256", COARSE, 12)):
        times = race_of(shape, calls, 4 if quick else rounds)
        peer = statistics.median(times["peer"])
        figures.add("python_every_block", f"{case}: plain, and forward again in backward", times["again"], "x plain")
        if shape is FINE:
            figures.add("python_every_block", case, times["ours"], "x plain", peer, 1.55,
                        statistics.median(times["ours"]))
        else:
            figures.add("python_every_block", case, times["ours"], "x plain", peer, 1.0)


def keep_matmuls(context, op, *args, **kwargs):
    return theirs.CheckpointPolicy.MUST_SAVE if op in MATMULS else theirs.CheckpointPolicy.PREFER_RECOMPUTE


def selective(figures, quick):
    """32 blocks whose matrix products are kept, by a list of operators and by a function."""
    calls = {}
    for side, module in SIDES.items():
        for kind, policy in (("list", MATMULS), ("function", keep_matmuls)):
            contexts = functools.partial(module.create_selective_checkpoint_contexts, policy)
            calls[side, kind] = functools.partial(module.checkpoint, use_reentrant=False, context_fn=contexts)
    times = race_of(FINE, calls, 4 if quick else 60)
    for kind, bar in (("list", 1.9), ("function", 2.6)):
        figures.add("python_selective", f"matmuls kept by a {kind}", times["ours", kind], "x plain",
                    statistics.median(times["peer", kind]), bar, statistics.median(times["ours", kind]))


BENCHES = {"python_region": region, "python_every_block": every_block, "python_selective": selective}
