"""FSDP2 with a byte budget for each process; the losses are those of the plain loop.

Run it as `torchrun --nproc-per-node 2 examples/python/fsdp2.py`."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import reprise


def losses(budget: "reprise.MemoryBudget | None") -> "list[float]":
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(8)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 1))
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(2 + dist.get_rank())  # each process has data of its own
    found = []
    for _ in range(4):
        x = torch.randn(512, 256)

        def train() -> float:
            loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.item())

        if budget is None:
            found.append(train())
        else:
            with budget.step():
                found.append(train())
    return found


def main() -> None:
    dist.init_process_group("gloo")
    with reprise.PeakScope() as plain:
        expected = losses(None)
    budget = reprise.MemoryBudget(plain.live_at_start + plain.peak_above_start * 7 // 10)
    same = losses(budget) == expected
    report = budget.report()
    print(f"rank {dist.get_rank()}: plain peak {plain.peak / 1e6:.1f} MB, peak within the budget {report.peak / 1e6:.1f} MB, "
          f"{report.replayed} operators replayed, {'same' if same else 'other'} losses\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
