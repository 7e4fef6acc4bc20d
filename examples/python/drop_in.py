"""reprise.checkpoint in place of torch.utils.checkpoint: blocks that run again in backward; the losses are the plain loop's."""

from collections.abc import Callable
from typing import Any

import torch

import reprise


def losses(run: "Callable[[torch.nn.Module, torch.Tensor], Any]") -> "list[float]":
    torch.manual_seed(1)
    blocks = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(8)]
    model = torch.nn.ModuleList([*blocks, torch.nn.Linear(256, 1)])
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for _ in range(4):
        x = torch.randn(512, 256)
        h: Any = x
        for block in model:
            h = run(block, h)
        loss = (h - x.mean(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def main() -> None:
    with reprise.PeakScope() as plain:
        expected = losses(lambda block, h: block(h))
    with reprise.PeakScope() as scope:
        same = losses(lambda block, h: reprise.checkpoint(block, h, use_reentrant=False)) == expected
    print(f"plain peak {plain.peak / 1e6:.1f} MB, peak with regions {scope.peak / 1e6:.1f} MB, "
          f"{'same' if same else 'other'} losses")


if __name__ == "__main__":
    main()
