"""reprise.Pipeline: models of Python modules, cut into stages, do what the same micro-batches do one after another."""

import pytest
import torch
from torch import nn

import reprise
from pipeline_testing import TWO, Returns, blocks, check_step, outcome, plain_step, same
from reprise import schedules

CASES = [
    ("gpipe", [7, 8], None), ("gpipe", [15], None), ("1f1b", [5, 5, 5], None), ("looped-bfs", [4, 4, 4, 3], TWO),
    ("interleaved-1f1b", [4, 4, 4, 3], TWO), ("zero-bubble", [4, 4, 4, 3], TWO), ("zbv", [4, 4, 4, 3], TWO),
    ("dualpipev", [4, 4, 4, 3], TWO)]


@pytest.mark.parametrize("schedule, balance, devices", CASES, ids=lambda value: str(value))
def test_a_step_is_the_same_micro_batches_one_after_another(schedule, balance, devices):
    model, x, target = blocks(3), torch.randn(16, 8), torch.randn(16, 8)
    for stop in (0, 3, 8):
        check_step(model, x, target, 8, schedule=schedule, balance=balance, devices=devices, checkpoint_stop=stop)


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_forward_and_backward_are_the_same_micro_batches_one_after_another(checkpoint):
    model, target = blocks(2), torch.randn(12, 8)
    pipe = reprise.Pipeline(model, balance=[3, 4, 3], chunks=4, checkpoint=checkpoint)
    x = torch.randn(12, 8, requires_grad=True)
    torch.manual_seed(2)
    seed, parts = reprise.seed_of_pipeline(), list(x.chunk(4))
    for i in range(4):
        for index, layer in enumerate(model):
            with reprise.DrawsOfLayer(seed, i, index):
                parts[i] = layer(parts[i])
    whole = torch.cat(parts).detach().requires_grad_()
    loss = nn.functional.mse_loss(whole, target)
    loss.backward()
    for part, gradient in reversed(list(zip(parts, whole.grad.chunk(4)))):
        part.backward(gradient)
    expected, expected_x, x.grad = outcome(model, loss), x.grad, None

    torch.manual_seed(2)
    loss = nn.functional.mse_loss(pipe(x), target)
    loss.backward(retain_graph=True)
    assert same(outcome(model, loss), expected) and torch.equal(x.grad, expected_x)
    loss.backward()  # the kept graph again
    assert same(outcome(model, loss), expected) and torch.equal(x.grad, 2 * expected_x)
    with pytest.raises(RuntimeError, match="retain_graph=[Tt]rue"):
        loss.backward()


def test_evaluation_records_nothing():
    model, x = blocks(1), torch.randn(7, 8)
    pipe = reprise.Pipeline(model, balance=[2, 3], chunks=3, checkpoint="always")
    assert pipe.training and pipe.checkpoint_stop(3) == 3
    assert pipe.eval() is pipe and not pipe.training and pipe.checkpoint_stop(3) == 0
    assert not model[3].training
    with torch.no_grad():
        output = pipe(x)
    assert not output.requires_grad and torch.equal(output, torch.cat([model(part) for part in x.chunk(3)]))
    with torch.no_grad(), pytest.raises(reprise.UsageError, match="grad mode is off"):
        pipe.step(x, x, nn.functional.mse_loss)


def test_batches_may_be_uneven_and_small_and_steps_return_outputs():
    model = blocks(1)
    for samples in (1, 2, 5, 7):
        x = torch.randn(samples, 8)
        pipe = check_step(model, x, torch.randn(samples, 8), 4, balance=[2, 3], schedule="1f1b")
        loss, output = pipe.step(x, x, nn.functional.mse_loss, outputs=True)
        assert output.shape == x.shape and not output.requires_grad and loss.shape == ()
        model.zero_grad()


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, pair):
        a, b = pair
        return self.linear(b).tanh(), None if a is None else a + b


def test_values_may_be_tuples():
    layers, a, b = [Pair() for _ in range(3)], torch.randn(4, 4), torch.randn(4, 4)
    pipe = reprise.Pipeline(layers, balance=[2, 1], chunks=2)
    c, d = pipe((a, b))
    plain = nn.Sequential(*layers)((a, b))
    assert torch.allclose(c, plain[0]) and torch.allclose(d, plain[1])
    (c.sum() + d.sum()).backward()
    assert all(layer.linear.weight.grad is not None for layer in layers)
    loss = pipe.step((a, b), (a, b), lambda output, target: (output[0] - target[0]).square().sum(), reduction="sum").loss
    assert torch.allclose(loss, (plain[0] - a).square().sum())
    one = reprise.Pipeline([nn.Identity()], balance=[1])
    with pytest.raises(reprise.UsageError, match=r"forward\(\) was given a tuple \(Tensor\)"):
        one((a,))
    with pytest.raises(reprise.UsageError, match=r"layer 0 \(Returns\) returned an object of type dict"):
        reprise.Pipeline([Returns({"a": 1})], balance=[1])(a)


@pytest.mark.parametrize("stop", [0, 3, 4])
def test_batch_norm_counts_each_micro_batch_once(stop):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    pipe = reprise.Pipeline(model, balance=[2, 2], chunks=4, checkpoint_stop=stop, schedule="1f1b")
    x, target = torch.randn(12, 8), torch.randn(12, 8)
    expected = plain_step(model, x, target, pipe.schedule(4), 4)
    model.load_state_dict(state)
    assert same(outcome(model, pipe.step(x, target, nn.functional.mse_loss).loss), expected)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_deferred_batch_norm_counts_the_mini_batch_once(momentum):
    plain, deferred = nn.BatchNorm2d(3, momentum=0.5), nn.BatchNorm2d(3, momentum=0.5)
    pipe = reprise.Pipeline([nn.Sequential(nn.Identity(), deferred)], balance=[1], chunks=3, deferred_batch_norm=True)
    plain.momentum = deferred.momentum = momentum
    for _ in range(2):
        x = torch.rand(11, 3, 4, 5) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
        plain(x)
        pipe(x).sum().backward()
        assert torch.allclose(deferred.running_mean, plain.running_mean)
        assert torch.allclose(deferred.running_var, plain.running_var)
        assert deferred.num_batches_tracked == plain.num_batches_tracked
    with pytest.raises(reprise.UsageError, match="no layer has a BatchNorm module"):
        reprise.Pipeline([nn.Identity()], balance=[1], deferred_batch_norm=True)


class Block(nn.Module, reprise.Skippable):
    def __init__(self, stashed="", popped="", gives_nothing=False):
        super().__init__()
        self.linear, self.stashed, self.popped, self.gives_nothing = nn.Linear(6, 6), stashed, popped, gives_nothing

    def stashes(self):
        return list(self.stashed)

    def pops(self):
        return list(self.popped)

    def forward(self, x):
        for name in self.popped:
            skip = reprise.pop(name)
            x = x if skip is None else x * skip
        x = nn.functional.dropout(self.linear(x).tanh(), 0.2)
        for name in self.stashed:
            reprise.stash(name, None if self.gives_nothing else x.cos())
        return x


@pytest.mark.parametrize("schedule, balance, devices", [("gpipe", [1] * 5, None), ("1f1b", [1, 2, 2], None),
                                                        ("zbv", [1, 1, 1, 2], TWO)])
def test_skips_go_from_stage_to_stage(schedule, balance, devices):
    torch.manual_seed(1)
    model = nn.Sequential(Block("a"), Block("b"), Block("c", gives_nothing=True), Block(popped="ac"), Block(popped="b"))
    x, target = torch.randn(8, 6), torch.randn(8, 6)
    for stop in (0, 4):
        check_step(model, x, target, 4, scope=reprise.SkipScope, schedule=schedule, balance=balance, devices=devices,
                   checkpoint_stop=stop)


def test_skips_are_checked():
    with pytest.raises(reprise.UsageError, match="stashes 'a', and no layer after it pops that"):
        reprise.Pipeline([Block("a"), Block()], balance=[2])
    with pytest.raises(reprise.UsageError, match="neither a pipeline runs this layer nor is a SkipScope open"):
        reprise.stash("a", torch.ones(1))
    own, other = reprise.SkipNamespace(), reprise.SkipNamespace()
    assert own("x") == own("x") != other("x")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return Double.apply(x, self.weight)


@pytest.mark.parametrize("schedule, balance, devices", [("1f1b", [3, 3], None), ("zbv", [1, 2, 2, 1], TWO)])
def test_autograd_functions_and_regions_of_python_run_in_layers(schedule, balance, devices):
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model = nn.Sequential(Scale(), nn.Linear(8, 8), Returns(lambda x: reprise.checkpoint(inner, x, use_reentrant=False)),
                          nn.Dropout(0.2), Scale(), nn.Linear(8, 8))
    model[2].inner = inner
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    for stop in (0, 4):
        check_step(model, x, target, 4, schedule=schedule, balance=balance, devices=devices, checkpoint_stop=stop)
    assert "is_traceable" not in vars(torch.autograd.Function)  # torch's classes are as they were


def test_bytes_are_planned():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)])
    x = torch.randn(256, 64)
    pipe = reprise.Pipeline(model, balance=[3, 3], chunks=4, bytes="8MB", schedule="1f1b")
    roomy = pipe.plan(x, x, nn.functional.mse_loss)
    assert roomy.bytes == [8_000_000] * 2 and len(roomy.stages) == 2
    assert all(each.recomputed_layers == 0 for stage in roomy.stages for each in stage.micro_batches)
    tight = [peak * 8 // 10 for peak in roomy.peaks]
    plan = reprise.Pipeline(model, balance=[3, 3], chunks=4, bytes=tight, schedule="1f1b").plan(x, x, nn.functional.mse_loss)
    assert any(each.recomputed_layers > 0 for each in plan.stages[0].micro_batches) and "layers run again" in plan.text()
    assert all(peak <= most for peak, most in zip(plan.peaks, tight))
    check_step(model, x, x, 4, balance=[3, 3], bytes=tight, schedule="1f1b")
    simulated = schedules.simulate(pipe.schedule(4), [reprise.PipelineStageCosts(forward=1, backward=2, resident=1000)] * 2,
                                   plan=plan)
    assert simulated.time >= 15 and simulated.workers[0].peak >= 1000
    with pytest.raises(reprise.BudgetError):
        reprise.Pipeline(model, balance=[3, 3], chunks=4, bytes=1000).step(x, x, nn.functional.mse_loss)


def test_balance_is_measured():
    model = nn.Sequential(nn.Linear(16, 512), nn.Linear(512, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    x = torch.randn(8, 16)
    assert reprise.balance_by_bytes(model, x, 2, repetitions=1) == [1, 3]
    assert sum(reprise.balance_by_time(model, x, 2, repetitions=1)) == 4
    with pytest.raises(reprise.BudgetError):
        reprise.balance_by_time(model, x, 2, 1000)


def test_schedules_are_read_written_and_run(tmp_path):
    assert schedules.names() == ["gpipe", "1f1b", "looped-bfs", "interleaved-1f1b", "zero-bubble", "zbv", "dualpipev"]
    schedule = schedules.interleaved_1f1b(workers=2, stages_per_worker=2, micro_batches=4)
    assert schedule == schedules.by_name("interleaved-1f1b", 2, 2, 4) and schedule.worker_of_stage() == [0, 1, 0, 1]
    (tmp_path / "own.csv").write_text(schedule.csv())
    read = reprise.PipelineSchedule.read_csv(tmp_path / "own.csv")
    assert read.workers == schedule.workers and read.stages == 4
    made = reprise.PipelineSchedule(4, 4, schedule.workers, name="own")
    assert made.csv() == schedule.csv() and made.name == "own"
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    check_step(blocks(1), x, target, 4, balance=[1, 1, 1, 2], schedule=read)
    actions = [[[reprise.PipelineAction(0, "B", 0)]]]
    with pytest.raises(reprise.PlanError):
        reprise.PipelineSchedule(1, 1, actions)
    with pytest.raises(reprise.UsageError, match="work is 'X'"):
        reprise.PipelineAction(0, "X", 0)


def test_schedules_are_simulated():
    schedule = schedules.one_forward_one_backward(4, 8)
    assert schedules.simulate(schedule).time == 33
    assert schedules.simulate(schedules.gpipe(2, 2, ascending=True), checkpoint_stop=2, recompute_ahead=False).time > 9
    assert [lives.peak_kept for lives in schedules.activation_lives(schedule)] == [4, 3, 2, 1]
    assert schedules.balance_by_cost([3.0, 1.0, 1.0, 1.0], 2) == [1, 3]
    assert schedules.balance([1.0, 1.0], ["1KB", 500], 2, 1000) == [1, 1]
