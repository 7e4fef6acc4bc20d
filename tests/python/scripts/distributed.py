"""Trains by DDP, FSDP1 and FSDP2, each plainly and then within a budget of its own, and prints what it found as JSON.

There are three updates of two micro-batches, of which the first does not synchronize gradients. Each script that is
named is then run as it is, and what it prints is found, too."""

import contextlib
import io
import json
import runpy
import sys
from unittest import mock

import gloo
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import reprise


def layers():
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(6)]


def by_ddp():
    return DistributedDataParallel(torch.nn.Sequential(*layers()))


def by_fsdp1():
    wrapped = [FullyShardedDataParallel(layer, device_id=torch.device("cpu")) for layer in layers()]
    return FullyShardedDataParallel(torch.nn.Sequential(*wrapped), device_id=torch.device("cpu"))


def by_fsdp2():
    blocks = [fully_shard(layer) for layer in layers()]
    return fully_shard(torch.nn.Sequential(*blocks))


def unsynchronized(model):
    if hasattr(model, "no_sync"):
        return model.no_sync()
    model.set_requires_gradient_sync(False)
    stack = contextlib.ExitStack()
    stack.callback(model.set_requires_gradient_sync, True)
    return stack


def trained(make, budget):
    """Losses and parameters, and the reports of the steps."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(2 + dist.get_rank())
    losses, reports = [], []
    for _ in range(3):
        for last in (False, True):
            x = torch.randn(512, 128)
            with budget.step() if budget else contextlib.nullcontext():
                with contextlib.nullcontext() if last else unsynchronized(model):
                    loss = model(x).square().mean()
                    loss.backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            if budget:
                reports.append(budget.report())
    local = [getattr(each, "_local_tensor", each).detach().clone() for each in model.parameters()]
    return (losses, local), reports


def main():
    dist.init_process_group("gloo")
    found = {}
    for make in (by_ddp, by_fsdp1, by_fsdp2):
        with reprise.PeakScope() as plain:
            (losses, expected), _ = trained(make, None)
        budget = reprise.MemoryBudget(reprise.live_bytes() + int(plain.peak_above_start * 0.7))
        (managed, parameters), reports = trained(make, budget)
        found[make.__name__] = {
            "same": managed == losses and all(map(torch.equal, parameters, expected)),
            "peak": max(report.peak - report.other_threads for report in reports), "limit": budget.limit,
            "dropped": sum(report.dropped + report.packed for report in reports)}
    # The scripts share the process group: a second one must not be made before all processes have left the first.
    with mock.patch.object(dist, "init_process_group"), mock.patch.object(dist, "destroy_process_group"):
        for script in sys.argv[1:]:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(script, run_name="__main__")
            found[script] = out.getvalue()
    print(json.dumps(found))
    gloo.end()


if __name__ == "__main__":
    main()
