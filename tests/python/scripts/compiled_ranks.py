"""Two processes compile within bytes: the same graph, other graphs, and one of them alone. Prints what was found as JSON."""

import contextlib
import json
import os
import tempfile
import warnings

import gloo
import torch
import torch.distributed as dist
from small import batch, network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import reprise
from reprise.compiled import _ranks


def tensor_parallel():
    model, mesh = network(layers=3), init_device_mesh("cpu", (2,))
    for part in model[:-1]:
        part[3].p = 0.0
        part[0] = torch.nn.Sequential(torch.nn.Linear(96, 192), torch.nn.GELU(), torch.nn.Linear(192, 96))
        parallelize_module(part[0], mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


class Network(torch.nn.Module):
    """Dynamo compiles what is written in forward, and not what torch's containers call around hooks."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(fully_shard(Block(each)) for each in network(layers=3))

    def forward(self, x):
        for each in self.blocks:
            x = each(x)
        return x


class Block(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x).tanh()


def fully_sharded():
    return fully_shard(Network())


class Wide(torch.nn.Module):
    """Of parameters for several buckets."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(1024, 256)) for _ in range(3))

    def forward(self, x):
        for each in self.blocks:
            x = x + each(x)
        return x.square().mean()


def data_parallel(share):
    """torch compiles a graph for each bucket of gradients, before any of them runs. Whether gradients are the same, the graphs, and
    the bytes of the last step by those of torch.compile."""
    found, peaks = [], []
    for compile in (torch.compile, lambda call, **options: reprise.compile(call, memory_budget=share, **options)):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(Wide(), bucket_cap_mb=2)
        call, x = compile(model, backend="aot_eager", dynamic=False), torch.randn(1024, 256)
        for _ in range(3):
            model.zero_grad()
            torch.manual_seed(dist.get_rank())
            with reprise.PeakScope() as scope:
                call(x).backward()
        found.append([each.grad for each in model.parameters()])
        peaks.append(scope.peak_above_start)
    return {"same": all(map(torch.equal, *found)), "graphs": len(call.memory_budget.report()), "share": peaks[1] / peaks[0]}


def collectives():
    """How many this process has begun."""
    return dist.group.WORLD._get_sequence_number_for_group()


def local(gradient):
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def sharded(make, budget):
    """Whether gradients of two steps are those of torch.compile, the collectives of both, and the warnings."""
    found, count = [], []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for compile in (torch.compile, lambda call, **options: reprise.compile(call, memory_budget=budget, **options)):
            torch._dynamo.reset()
            torch.manual_seed(1)
            x, _ = batch()
            model = make()
            call = compile(model, backend="aot_eager")
            began = collectives()
            for _ in range(2):
                call(x).square().sum().backward()
            count.append(collectives() - began)
            found.append([local(each.grad) for each in model.parameters()])
    reports = call.memory_budget.report()
    return {"same": all(map(torch.equal, *found)), "collectives": count, "saves": any(each.recomputed for each in reports),
            "said": [str(each.message) for each in said if "compile another graph" in str(each.message)]}


def trained(layers, budget):
    """Whether gradients are those of the plain step, what is handed over, and the warnings."""
    found = []
    for compile in (torch.compile, lambda call, **options: reprise.compile(call, memory_budget=budget, **options)):
        torch._dynamo.reset()
        torch.manual_seed(1)
        x, _ = batch()
        model = network(layers=layers)
        call = compile(model, backend="aot_eager")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call(x).square().sum().backward()
        found.append([each.grad for each in model.parameters()])
    (report,) = call.memory_budget.report()
    return {"same": all(map(torch.equal, *found)), "handed_over": report.handed_over, "predicted": report.predicted_peak,
            "default": report.default_peak, "recomputed": report.recomputed,
            "said": [str(each.message) for each in said if "reprise.compile" in str(each.message)]}


def main():
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # each process times operators for itself
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    default = trained(2, "1GiB")["default"]
    found = {"default": default, "same_graph": trained(2, f"+{default * (90 - 5 * rank) // 100}")}
    try:
        trained(2, "1GiB" if rank == 0 else "+20KB")
    except reprise.BudgetError as error:
        found["refused"] = str(error)
    found["tensor_parallel"], found["fully_sharded"] = sharded(tensor_parallel, "75%"), sharded(fully_sharded, "75%")
    found["data_parallel"] = data_parallel("85%")
    found["other_graph"] = trained(2 + rank, "85%")
    _ranks._WAIT = 0.5
    if rank == 1:
        found["alone"] = trained(2, "85%")
    print(json.dumps(found))
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    gloo.end()


if __name__ == "__main__":
    main()
