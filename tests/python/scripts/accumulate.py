"""Several backward calls for one step of the optimizer, with a scaler and autocast."""

import torch
from small import loss_of, network

model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(5):
    for part in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model) / 3
        scaler.scale(loss).backward()
        print(step, part, loss.item())
    scaler.unscale_(optimizer)
    print(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
