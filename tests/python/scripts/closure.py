"""LBFGS: many backward calls in one step."""

import torch
from small import batch, network

model = network()
model.eval()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=2)
x, y = batch()
for step in range(4):
    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    print(step, optimizer.step(closure).item())
