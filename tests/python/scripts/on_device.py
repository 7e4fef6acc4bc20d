"""Trains a small network on a CUDA device and prints the losses."""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(256, 256), *[nn.Sequential(
    nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x = torch.randn(8192, 256, device="cuda")
for _ in range(8):
    with torch.autocast("cuda", torch.bfloat16):
        loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
