"""auto_checkpoint: a model's steps find themselves."""

import pytest
import torch

import reprise
from conftest import Network


def trained(network, steps=4):
    torch.manual_seed(9)
    optimizer = torch.optim.SGD(network.model.parameters(), lr=1e-4)
    losses = []
    for step in range(steps):
        loss = network.model(network.x).square().sum()
        loss.backward(retain_graph=step == 1)
        if step == 1:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        network.model.eval()
        with torch.no_grad():
            losses.append(network.model(network.x).sum().item())
        network.model.train()
    return losses


def test_a_model_trains_within_its_bytes_whoever_has_the_loop():
    expected = trained(Network())
    network = Network()
    model = reprise.auto_checkpoint(network.model, network.limit(0.7))
    assert model is network.model
    assert trained(network) == expected
    report = model.memory_budget.report()
    assert report.peak <= model.memory_budget.limit and report.dropped + report.packed > 0


def test_a_forward_inside_of_another_step_belongs_to_it():
    network = Network(layers=4)
    reprise.auto_checkpoint(network.model, "4GiB")
    outer = reprise.MemoryBudget("4GiB")
    with outer.step():
        network.model(network.x).sum().backward()
    assert outer.report().operators > 0 and network.model.memory_budget.report().operators == 0


def test_an_exception_ends_the_step():
    network = Network(layers=4)
    model = reprise.auto_checkpoint(network.model, "4GiB")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(network.x[:, :3])
    assert not reprise._reprise.is_in_step()
    loss = model(network.x).sum()
    loss.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert not reprise._reprise.is_in_step()
    tight = reprise.auto_checkpoint(Network().model, network.limit(0.05))
    with pytest.raises(reprise.BudgetError):
        tight(network.x).sum().backward()
    assert not reprise._reprise.is_in_step()


def test_bytes_that_are_none_are_refused():
    with pytest.raises(reprise.UsageError, match="must be above 0"):
        reprise.auto_checkpoint(torch.nn.Linear(1, 1), memory_budget=0)
