"""A plain training loop within a byte budget, at 60 % of what its activations need; the losses are the plain loop's."""

import torch

import reprise


def losses(budget: "reprise.MemoryBudget | None") -> "list[float]":
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(12)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for _ in range(6):
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
    with reprise.PeakScope() as plain:
        expected = losses(None)
    budget = reprise.MemoryBudget(plain.live_at_start + plain.peak_above_start * 6 // 10)
    same = losses(budget) == expected
    report = budget.report()
    print(f"plain peak {plain.peak / 1e6:.1f} MB, peak within the budget {report.peak / 1e6:.1f} MB, "
          f"{report.replayed} operators replayed, {'same' if same else 'other'} losses")


if __name__ == "__main__":
    main()
