"""Optimizers that step during backward, one a parameter."""

from small import loss_of, network
import torch

model = network()
optimizers = {p: torch.optim.SGD([p], lr=1e-2) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(6):
    loss = loss_of(model)
    loss.backward()
    print(step, loss.item())
