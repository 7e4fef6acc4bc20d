"""A network in two stages on two workers, with 1F1B and eight micro-batches; the losses are those of one stage."""

import torch

import reprise


def losses(balance: "list[int]", schedule: str) -> "tuple[list[float], reprise.PipelineTimeline]":
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.LayerNorm(128), torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1))
              for _ in range(6)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 1))
    pipe = reprise.Pipeline(model, balance=balance, chunks=8, schedule=schedule, threads=1)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for _ in range(4):
        x = torch.randn(256, 128)
        step = pipe.step(x, x.mean(1, keepdim=True), torch.nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(step.loss.item()))
    return found, pipe.timeline()


def main() -> None:
    expected, _ = losses([7], "1f1b")
    found, timeline = losses([4, 3], "1f1b")
    print(timeline.text())
    print(f"two stages, {timeline.bubble:.0%} idle, {'same' if found == expected else 'other'} losses")


if __name__ == "__main__":
    main()
