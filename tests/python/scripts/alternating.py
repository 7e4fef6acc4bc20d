"""Two optimizers in turn, whose steps need different bytes. The second has the larger state, and steps once for `every` steps
of the first."""

import sys

import torch
from small import loss_of, network

every = int(sys.argv[1])
small, large = network(layers=3), network(width=192, layers=6)
first, second = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in (small, large))
for step in range(8 * every):
    loss = loss_of(small)
    loss.backward()
    first.step()
    first.zero_grad()
    print(step, loss.item())
    if step % every == every - 1:
        x = torch.randn(256, 192)
        loss = large(x).square().mean()
        loss.backward()
        second.step()
        second.zero_grad()
        print(step, loss.item())
