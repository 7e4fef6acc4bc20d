"""A compiled trunk and a head that is not. Arguments: the backend, and how many steps."""

import sys

import torch
from small import batch, network

FAST = {"options": {"cpp.simdlen": 1, "compile_threads": 1, "cpp_cache_precompile_headers": False}}

trunk, head = network(layers=3)[:3], network(layers=3)
call = torch.compile(trunk, backend=sys.argv[1], **(FAST if sys.argv[1] == "inductor" else {}))
optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=1e-2)
for step in range(int(sys.argv[2])):
    x, y = batch()
    torch.nn.functional.mse_loss(head(call(x)), y).backward()
    optimizer.step()
    print(step, sum(p.detach().double().square().sum().item() + p.grad.double().abs().sum().item() for p in trunk.parameters()))
    optimizer.zero_grad()
