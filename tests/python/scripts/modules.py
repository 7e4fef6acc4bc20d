"""A common loop: a scheduler, evaluation with larger batches, checkpoints between steps."""

import io

import torch
from small import loss_of, network

model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def evaluate():
    model.eval()
    with torch.no_grad():
        found = loss_of(model, rows=4096).item()
    model.train()
    return found


for step in range(8):
    if step % 3 == 0:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        print("evaluated", evaluate())
        file.seek(0)
        model.load_state_dict(torch.load(file)["model"])
    loss = loss_of(model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item())
print("norm", sum(p.detach().square().sum().item() for p in model.parameters()))
