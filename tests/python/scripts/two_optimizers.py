"""A generator and a discriminator; the generator's graph is held while the discriminator steps."""

import torch
from small import network

generator, discriminator = network(layers=4), network(layers=4)
generator[-1] = torch.nn.Linear(96, 96)
first = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
second = torch.optim.Adam(generator.parameters(), lr=1e-3)
for step in range(6):
    real, made = torch.randn(512, 96), generator(torch.randn(512, 96))
    first.zero_grad()
    loss = discriminator(made.detach()).exp().mean() - discriminator(real).mean()
    loss.backward()
    first.step()
    second.zero_grad()
    fooled = -discriminator(made).mean()
    fooled.backward()
    second.step()
    print(step, loss.item(), fooled.item())
