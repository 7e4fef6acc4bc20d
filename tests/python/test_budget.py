"""MemoryBudget from Python: gradients are bitwise the plain step's, and errors are Python's own."""

import gc
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch

import reprise
from conftest import Network


@pytest.mark.parametrize("share", [0.9, 0.6, 0.45])
def test_gradients_are_bitwise_those_of_the_plain_step(network, share):
    budget = reprise.MemoryBudget(network.limit(share))
    for _ in range(4):
        with budget.step():
            assert network.is_same(network.gradients())
        assert budget.report().peak <= budget.limit
    report = budget.report()
    assert report.dropped + report.packed > 0 and report.dropped_bytes + report.packed_bytes > 0


def test_a_budget_that_never_binds_drops_nothing(network):
    budget = reprise.MemoryBudget("4GiB")
    with budget.step():
        assert network.is_same(network.gradients())
    report = budget.report()
    assert (budget.limit, report.dropped, report.replayed) == (4 << 30, 0, 0)
    assert report.operators > 50 and report.own_time > 0
    assert repr(report).startswith(f"StepReport(peak={report.peak}, ") and "<th>replay_time</th>" in report._repr_html_()


def test_paranoid_and_verifying_budgets_are_exact(network):
    budget = reprise.MemoryBudget("4GiB", paranoid=True, verify=True, min_bytes=0)
    with budget.step():
        assert network.is_same(network.gradients())
    assert budget.report().replayed > 100


def test_a_budget_error_is_caught_as_torch_s_out_of_memory_error_inside_and_outside_of_the_step(network):
    budget = reprise.MemoryBudget(network.limit(0.05))
    with pytest.raises(reprise.BudgetError, match="raise the budget, or make the batch smaller") as caught:
        with budget.step():
            with pytest.raises(torch.OutOfMemoryError):
                network.gradients()
            network.gradients()
    assert isinstance(caught.value, reprise.Error) and isinstance(caught.value, RuntimeError)
    with reprise.MemoryBudget("4GiB").step():
        assert network.is_same(network.gradients())


@pytest.mark.parametrize("allocate", [
    lambda: torch.tensor([0.0] * 50_000), lambda: torch.as_tensor([0.0] * 50_000), lambda: torch.zeros(1).new_tensor([0.0] * 50_000),
    lambda: torch.zeros(8).untyped_storage().resize_(200_000)])
def test_what_no_operator_allocates_is_refused_with_the_same_error(allocate):
    gc.collect()  # what earlier tests have left would make room
    budget = reprise.MemoryBudget(reprise.live_bytes() + 100_000)
    with budget.step():
        with pytest.raises(reprise.BudgetError, match="past operators|outside of operators"):
            allocate()
        assert torch.ones(10).sum() == 10


def test_a_step_that_an_exception_ends_is_not_learned_from(network):
    budget = reprise.MemoryBudget("4GiB")
    with pytest.raises(KeyError, match="mine"):
        with budget.step():
            network.gradients()
            raise KeyError("mine")
    assert budget.least is None
    with budget.step():
        network.gradients()
    assert budget.least < network.limit(1.0)


def fail_in_backward():
    """torch keeps the gradients and nodes that were waiting, until its next backward."""
    def fail(_):
        raise KeyError("mine")

    x = torch.randn(256, 256, requires_grad=True)
    branches = [(x * k).exp() for k in range(1, 9)]
    branches[-1].register_hook(fail)
    torch.stack(branches).square().sum().backward()


def test_what_a_failed_backward_has_left_is_freed_when_its_step_ends():
    budget = reprise.MemoryBudget("4GiB")
    before = reprise.live_bytes()
    with pytest.raises(KeyError, match="mine"):
        with budget.step():
            fail_in_backward()
    assert reprise.live_bytes() == before
    with pytest.raises(KeyError, match="mine"):
        fail_in_backward()
    assert reprise.live_bytes() > before, "torch frees it by itself: steps need not"
    with budget.step():
        assert reprise.live_bytes() == before


def test_steps_run_at_the_least_bytes_and_a_tenth(network):
    roomy = reprise.MemoryBudget("4GiB")
    for _ in range(2):
        with roomy.step():
            network.gradients()
    tight = reprise.MemoryBudget(int(roomy.least * 1.1))
    for _ in range(3):
        with tight.step():
            assert network.is_same(network.gradients())
    assert tight.report().peak <= tight.limit


def test_a_plan_is_written_read_and_followed(network, tmp_path):
    budget = reprise.MemoryBudget(network.limit(0.5), planning_time=0.5)
    for _ in range(4):
        with budget.step():
            network.gradients()
        assert budget.wait_for_plan(60)
    plan = budget.plan()
    file = tmp_path / "step.plan.json"
    plan.write(file)
    again = pickle.loads(pickle.dumps(reprise.LearnedPlan.read(file)))
    assert (again.step, again.operators, again.json()) == (plan.step, plan.operators, plan.json())
    assert again.limit == budget.limit and 1 <= again.bound <= again.slowdown
    assert repr(again) == repr(plan) and repr(plan).startswith(f"LearnedPlan(limit={budget.limit}, slowdown=")
    other = reprise.MemoryBudget(budget.limit)
    other.use(again)
    with other.step():
        found = network.gradients()
    assert network.is_same(found) and other.report().followed > 0
    with pytest.raises(reprise.UsageError, match="the plan was made for"):
        reprise.MemoryBudget(budget.limit // 2).use(again)
    other.use(again)
    with pytest.raises(reprise.PlanError, match="the plan is of another step"):
        with other.step():
            torch.randn(100, 100).sin()
    file.write_text(file.read_text() + "{")
    with pytest.raises(ValueError, match="step.plan.json"):
        reprise.LearnedPlan.read(file)


@pytest.mark.parametrize("limit, text", [
    ("8GoB", '"GoB" is not a unit'), (0, "must be above 0"), ("-1MB", "must be above 0"), (1.5, "MemoryBudget: the limit is 1.5"),
    (True, "the limit is True"), (None, "the limit is None")])
def test_a_limit_that_is_none_is_refused(limit, text):
    with pytest.raises(ValueError, match=text):
        reprise.MemoryBudget(limit)


@pytest.mark.parametrize("options, text", [
    ({"on_exceeded": "ignore"}, "on_exceeded is 'ignore'; it is 'raise', 'warn' or 'pass'"), ({"heuristic": "best"}, "h_dtr"),
    ({"min_bytes": -1}, "min_bytes"), ({"planning_time": 0}, "time for planning"), ({"replay_limit": -1}, "replay_limit"),
    ({"device": "cuda:77"}, "cuda")])
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(reprise.UsageError, match=text):
        reprise.MemoryBudget("1GiB", **options)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'limits'"):
        reprise.MemoryBudget("1GiB", limits=3)


def test_a_fraction_of_the_device_is_a_budget():
    half, whole = (reprise.MemoryBudget.fraction_of_device(share, verify=True).limit for share in (0.5, 1.0))
    assert abs(whole - 2 * half) <= 1
    with pytest.raises(reprise.UsageError, match="above 0 and at most 1"):
        reprise.MemoryBudget.fraction_of_device(1.5)


def test_a_budget_that_warns_passes_its_limit():
    network = Network(layers=4)
    budget = reprise.MemoryBudget(network.limit(0.05), on_exceeded="warn")
    with pytest.warns(UserWarning, match="raise the budget"):
        with budget.step():
            assert network.is_same(network.gradients())
    assert budget.report().peak > budget.limit


def test_a_budget_that_passes_its_limit_in_silence_drops_what_it_can():
    network = Network(layers=4)
    budget = reprise.MemoryBudget(network.limit(0.05), on_exceeded="pass")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with budget.step():
            found = network.gradients()
    assert network.is_same(found)
    assert budget.limit < budget.report().peak < network.limit(0.8)


def test_a_step_is_entered_once_and_ended_on_its_thread():
    budget = reprise.MemoryBudget("1GiB")
    step = budget.step()
    with pytest.raises(reprise.UsageError, match="not entered"):
        step.finish()
    with step:
        errors = []

        def end():
            try:
                step.finish()
            except reprise.UsageError as error:
                errors.append(str(error))

        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        assert errors == ["MemoryBudget: a step ends on the thread that entered it"]
        step.finish()
        step.finish()
    with pytest.raises(reprise.UsageError, match="entered before"):
        step.__enter__()


def test_an_interpreter_ends_with_a_step_open():
    program = ("import reprise, torch; step = reprise.MemoryBudget('1GiB').step(); step.__enter__(); "
               "x = torch.randn(100, 100, requires_grad=True); y = (x @ x).sin(); print('end', flush=True)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_an_inner_step_that_is_open_keeps_the_outer_one_from_finishing():
    outer, inner = reprise.MemoryBudget("1GiB").step(), reprise.MemoryBudget("1GiB").step()
    with outer:
        with inner:
            with pytest.raises(reprise.UsageError, match="inner step is still open"):
                outer.finish()


def test_threads_train_side_by_side_without_the_interpreter_s_lock_standing_still(network):
    failures = []

    def train():
        mine = Network(layers=4, rows=256)
        budget = reprise.MemoryBudget("4GiB", paranoid=True)
        for _ in range(3):
            with budget.step():
                torch.randn(64, 64).mm(torch.randn(64, 64))
                out = mine.model(mine.x).sum()
                if not torch.isfinite(out).item():
                    failures.append(out)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_python_objects_in_backward_run_under_pressure(network):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.sin())
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

    x = torch.randn(256, 256, requires_grad=True)

    def step():
        y = x
        for _ in range(12):
            y = Twice.apply(y).tanh()
            y.register_hook(lambda grad: grad * 1.5)
        return torch.autograd.grad(y.sum(), x)[0]

    with reprise.PeakScope() as scope:
        expected = step()
    budget = reprise.MemoryBudget(reprise.live_bytes() + int(scope.peak_above_start * 0.6))
    with budget.step():
        assert torch.equal(step(), expected)
    assert budget.report().dropped > 0


def test_exceptions_of_python_keep_their_type_inside_a_step():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("mine")

    with reprise.MemoryBudget("1GiB").step():
        with pytest.raises(KeyError, match="mine"):
            Fails.apply(torch.ones(3, requires_grad=True)).sum().backward()


def test_no_warning_is_given_on_the_way(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with reprise.MemoryBudget(network.limit(0.6)).step():
            network.gradients()


@torch.library.custom_op("reprise_test::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


@pytest.mark.parametrize("how", ["operator", "custom operator", "compiled"])
def test_a_kernel_that_catches_a_refusal_and_goes_on_without_onednn_fails(how):
    """Batched products in 16 bits do, where the processor has them: other bits, and oneDNN off from then on."""
    call = {"operator": torch.bmm, "custom operator": product, "compiled": torch.compile(lambda a, b: torch.bmm(a, b) * 2)}[how]
    a, b = torch.randn(8, 128, 129).bfloat16(), torch.randn(8, 129, 128).bfloat16()
    expected = call(a, b)
    with reprise.PeakScope() as scope:
        call(a, b)
    fitting = refused = 0
    for room in range(expected.nbytes // 2, scope.peak_above_start + 65536, 16384):
        try:
            with reprise.MemoryBudget(reprise.live_bytes() + room).step():
                found = call(a, b)
            assert torch.equal(found, expected)
            fitting += 1
            del found
        except reprise.BudgetError:
            refused += 1
        assert torch.backends.mkldnn.enabled
    assert fitting and refused
