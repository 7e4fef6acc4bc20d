"""Trains by DDP and evaluates between the steps. Every process prints its losses."""

import gloo
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(2 + dist.get_rank())
for step in range(5):
    loss = model(torch.randn(512, 128)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
    if step == 2:
        model.eval()
        with torch.no_grad():
            print(model(torch.ones(64, 128)).sum().item())
        model.train()
gloo.end()
