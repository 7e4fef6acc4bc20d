"""Tensors without modules."""

import torch
from small import batch

torch.manual_seed(5)
weights = [(torch.randn(96, 96) * 0.1).requires_grad_() for _ in range(8)]
optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9)
for step in range(6):
    x, y = batch()
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight) + x
    loss = (x.mean(1, keepdim=True) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
