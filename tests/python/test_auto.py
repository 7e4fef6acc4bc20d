"""auto_checkpoint: a model's steps find themselves."""

import copy
import io
import pickle

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


def test_a_second_budget_takes_the_place_of_the_first():
    network = Network()
    reprise.auto_checkpoint(network.model, "8GiB")
    twin = Network()
    assert trained(network, steps=1) == trained(twin, steps=1)
    model = reprise.auto_checkpoint(network.model, network.limit(0.7))
    assert trained(network) == trained(twin)
    report = model.memory_budget.report()
    assert 0 < report.peak <= model.memory_budget.limit and report.dropped + report.packed > 0


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


def test_gradients_that_are_asked_for_by_grad_end_the_step():
    network, other = Network(layers=4), Network(layers=4)
    models = [reprise.auto_checkpoint(each.model, each.limit(0.8)) for each in (network, other)]
    for each, model in zip((network, other), models):
        for _ in range(2):
            first = model(each.x).square().sum()
            torch.autograd.grad(first, list(model.parameters()), retain_graph=True)
            assert reprise._reprise.is_in_step(), "another backward can come"
            torch.autograd.grad(first, list(model.parameters()))
            assert not reprise._reprise.is_in_step()
            assert each.is_same(each.gradients())
            report = model.memory_budget.report()
            assert report.peak <= model.memory_budget.limit and report.dropped + report.packed > 0


def test_a_copy_of_a_model_shares_its_budget(network):
    model = reprise.auto_checkpoint(Network().model, network.limit(0.7))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    copied = copy.deepcopy(model)
    assert copied.memory_budget is averaged.module.memory_budget is model.memory_budget is copy.copy(model.memory_budget)
    before = model.memory_budget.report().operators
    copied(network.x).square().sum().backward()
    assert model.memory_budget.report().operators > before and not reprise._reprise.is_in_step()


def test_a_model_that_is_loaded_from_a_file_has_a_budget_of_its_own(network):
    model = reprise.auto_checkpoint(Network(layers=4).model, "4GiB", min_bytes="8KiB")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.memory_budget is not model.memory_budget and loaded.memory_budget.limit == 4 << 30
    loaded(network.x).sum().backward()
    assert loaded.memory_budget.report().operators > 0 and model.memory_budget.report().operators == 0
    with pytest.raises(TypeError, match="make a new one where it is loaded"):
        pickle.dumps(reprise.MemoryBudget("4GiB"))
