"""A loop of Accelerate within a byte budget, at 70 % of its plain peak; the losses are the plain loop's."""

import gc

import torch
from accelerate import Accelerator

import reprise
from reprise.integrations.accelerate import with_memory_budget


def losses(accelerator: Accelerator) -> "list[float]":
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(10)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.utils.data.TensorDataset(torch.randn(2048, 128))
    model, optimizer, data = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(rows, batch_size=512))
    found = []
    for _ in range(2):
        for (x,) in data:
            with accelerator.accumulate(model):
                loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(float(loss.item()))
    return found


def main() -> None:
    with reprise.PeakScope() as plain:
        expected = losses(Accelerator(cpu=True, gradient_accumulation_steps=2))
    gc.collect()
    limit = reprise.live_bytes() + plain.peak_above_start * 7 // 10
    accelerator = with_memory_budget(Accelerator(cpu=True, gradient_accumulation_steps=2), limit)
    same = losses(accelerator) == expected
    report = accelerator.memory_budget.report()
    print(f"plain peak {plain.peak / 1e6:.1f} MB, peak within the budget {report.peak / 1e6:.1f} MB, "
          f"{report.replayed} operators replayed, {'same' if same else 'other'} losses")


if __name__ == "__main__":
    main()
