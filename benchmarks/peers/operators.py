"""Cases whose work is almost nothing, so that what surrounds it can be seen: sin on 8 x 8, and
chains of it. The C++ twins are in benchmarks/chain.h and the benchmarks' own files."""

import contextlib

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

CHAIN = 100  # operators of a chain, each of which saves one tensor


def sin(x):
    return x.sin()


def chain(x):
    for _ in range(CHAIN):
        x = x.sin()
    return x


def leaf():
    return torch.randn(8, 8, requires_grad=True)


def forward_of(f):
    def make():
        x = leaf()
        return lambda: f(x)

    return make


def backward_of(f):
    """f forward and backward; the gradient does not stay, as after a step."""

    def make():
        x, gradient = leaf(), torch.ones(8, 8)

        def step():
            f(x).backward(gradient)
            x.grad = None

        return step

    return make


def region(f, reentrant, state):
    return backward_of(
        lambda x: checkpoint(f, x, use_reentrant=reentrant, preserve_rng_state=state)
    )


def under(scope):
    def run(x):
        with scope():
            return chain(x)

    return backward_of(run)


def identity_hooks():
    return saved_tensors_hooks(lambda x: x, lambda x: x)


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def calls_of(f, seen):
    """f called CHAIN times without a graph, in a dispatch mode's scope or outside."""

    def make():
        x, w = torch.randn(8, 8), torch.randn(8, 8)

        def step():
            with torch.no_grad(), PassThrough() if seen else contextlib.nullcontext():
                for _ in range(CHAIN):
                    f(x, w)

        return step

    return make


SEEN = {
    "sin": lambda x, w: x.sin(),
    "add": lambda x, w: x.add(w),
    "view": lambda x, w: x.view(64),
    "mm": lambda x, w: x.mm(w),
}


def under_policy(policy):
    def contexts():
        return create_selective_checkpoint_contexts(lambda context, op, *args, **kwargs: policy)

    return lambda x: checkpoint(chain, x, use_reentrant=False, context_fn=contexts)


def plain_region(x):
    return checkpoint(chain, x, use_reentrant=False)


INTERCEPTION = {
    **{f"{name},plain": calls_of(f, seen=False) for name, f in SEEN.items()},
    **{f"{name},seen": calls_of(f, seen=True) for name, f in SEEN.items()},
    "region": backward_of(plain_region),
    "recompute-all": backward_of(under_policy(CheckpointPolicy.PREFER_RECOMPUTE)),
    "region,forward": forward_of(plain_region),
    "keep-all,forward": forward_of(under_policy(CheckpointPolicy.PREFER_SAVE)),
}

CASES = {
    **{f"interceptor_overhead/{name}": make for name, make in INTERCEPTION.items()},
    "region_overhead/plain": backward_of(sin),
    "region_overhead/forward": forward_of(sin),
    "region_overhead/non-reentrant": region(sin, reentrant=False, state=False),
    "region_overhead/non-reentrant,state": region(sin, reentrant=False, state=True),
    "region_overhead/reentrant": region(sin, reentrant=True, state=False),
    "region_overhead/reentrant,state": region(sin, reentrant=True, state=True),
    "region_chain/plain": backward_of(chain),
    "region_chain/forward": forward_of(chain),
    "region_chain/region": region(chain, reentrant=False, state=True),
    "sequential_fine/plain": backward_of(chain),
    "sequential_fine/segments": backward_of(
        lambda x: checkpoint_sequential([sin] * CHAIN, CHAIN, x, use_reentrant=False)
    ),
    "hooks/plain": backward_of(chain),
    "hooks/identity": under(identity_hooks),
    "hooks/save_on_cpu": under(save_on_cpu),
}
