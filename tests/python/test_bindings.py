"""The binding itself: what it says to values that are none of an option's, what it copies, and whom it keeps alive."""

import copy
import gc
import json
import pickle
import subprocess
import sys
import threading

import pytest
import torch

import reprise
from reprise import _reprise

HUGE = 10**30


def pipeline(**options):
    return reprise.Pipeline(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(2)]), **{"balance": [1, 1], **options})


def pgac(**options):
    return _reprise.PgacRunner(**options)


@pytest.mark.parametrize("call, options, text", [
    (reprise.MemoryBudget, {"limit": HUGE}, f"MemoryBudget: the limit is {HUGE}; give at most 2**63 - 1 bytes"),
    (reprise.MemoryBudget, {"limit": 9, "min_bytes": HUGE}, f"MemoryBudget: min_bytes is {HUGE}; give at most 2**63 - 1 bytes"),
    (reprise.MemoryBudget, {"limit": 9, "verify": "x"}, "MemoryBudget: verify is 'x'; give True or False"),
    (reprise.MemoryBudget, {"limit": 9, "paranoid": "x"}, "MemoryBudget: paranoid is 'x'; give True or False"),
    (reprise.MemoryBudget, {"limit": 9, "plan_repeated_steps": []}, "MemoryBudget: plan_repeated_steps is []; give True or False"),
    (reprise.MemoryBudget, {"limit": 9, "heuristic": None}, "MemoryBudget: heuristic is None; give a str"),
    (reprise.MemoryBudget, {"limit": 9, "on_exceeded": 3}, "MemoryBudget: on_exceeded is 3; give a str"),
    (reprise.MemoryBudget, {"limit": 9, "planning_time": "x"}, "MemoryBudget: planning_time is 'x'; give a number"),
    (reprise.MemoryBudget, {"limit": 9, "replay_limit": []}, "MemoryBudget: replay_limit is []; give a number"),
    (reprise.MemoryBudget, {"limit": 9, "device": 3}, "the device is 3; give a torch.device or its name, such as \"cuda:0\""),
    (reprise.PeakScope, {"device": []}, "the device is []; give a torch.device or its name, such as \"cuda:0\""),
    (reprise.value_weights, {"weights": {3: "x"}},
     "value_weights(): weights is {3: 'x'}; give a dict of operators' names and their weights"),
    (pipeline, {"balance": [1, "x"]}, "Pipeline: balance is [1, 'x']; give numbers of layers"),
    (pipeline, {"chunks": "x"}, "Pipeline: chunks is 'x'; give an int that the library's integers hold"),
    (pipeline, {"threads": 2**31}, f"Pipeline: threads is {2**31}; give an int that the library's integers hold"),
    (pipeline, {"checkpoint": 3}, "Pipeline: checkpoint is 3; give a str"),
    (pipeline, {"checkpoint_stop": "x"}, "Pipeline: checkpoint_stop is 'x'; give an int or None"),
    (pipeline, {"schedule": 3}, "Pipeline: schedule is 3; give a name or a PipelineSchedule"),
    (pipeline, {"deferred_batch_norm": "x"}, "Pipeline: deferred_batch_norm is 'x'; give True or False"),
    (pgac, {"alpha": "x"}, "Pgac: alpha is 'x'; give a number"),
    (pgac, {"gamma": "x"}, "Pgac: gamma is 'x'; give a number"),
    (pgac, {"gamma": ("linear", "x", 1.0)}, "Pgac: gamma's first number is 'x'; give a number"),
    (pgac, {"ranking": 3}, "Pgac: ranking is 3; give a str"),
    (pgac, {"seed": -1}, "Pgac: seed is -1; give an int from 0 that the library's integers hold"),
    (pgac, {"lossy": 3}, "Pgac: lossy is 3; give a LossyOptions or None"),
])
def test_a_value_of_another_type_is_an_error_that_names_option_and_remedy(call, options, text):
    with pytest.raises(reprise.UsageError) as raised:
        call(**options)
    assert str(raised.value) == text


def test_a_weight_that_is_no_number_is_named(network):
    budget = reprise.MemoryBudget(network.limit(0.5), weights=reprise.value_weights(lambda name, kind, number: "x"))
    with budget.step():
        network.gradients()
    with pytest.raises(reprise.UsageError, match=r"^value_weights\(\): the weight of aten::\w+ is 'x'; give a number$"):
        with budget.step():
            pass


def test_what_a_combine_returns_is_checked(network):
    runner = reprise.Pgac(combine=lambda averages: "x")
    runner.run(list(network.model), network.x).square().sum().backward()
    with pytest.raises(reprise.UsageError, match=r"^Pgac: what combine returned is 'x'; give a list of numbers$"):
        runner.observe(0)


def bound_classes():
    classes = [getattr(_reprise, name) for name in dir(_reprise)]
    return [each for each in classes if isinstance(each, type) and not issubclass(each, BaseException)]


def objects(folder):
    budget = reprise.MemoryBudget("1GiB", store=reprise.disk_store(folder))
    with budget.step() as step:
        torch.ones(4, requires_grad=True).sum().backward()
    return [budget, step, reprise.PeakScope(), reprise.EventLog(), reprise.Pin(torch.ones(2)),
            reprise.disk_store(folder), reprise.value_weights({"aten::mm": 2.0}), _reprise.GraphExecGroup(),
            _reprise.hold(torch.ones(2))]


def test_objects_show_what_they_are_and_are_not_copied(tmp_path):
    for each in objects(tmp_path):
        assert repr(each).startswith(("<", type(each).__name__ + "("))
        # A budget is shared by the copies of what has it.
        for copies in (pickle.dumps,) if isinstance(each, reprise.MemoryBudget) else (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle"):
                copies(each)


def records(folder):
    """Results of calls, one of each kind."""
    log, x = reprise.EventLog(), torch.ones(600, 4)
    budget = reprise.MemoryBudget("1GiB", observer=log, paranoid=True, min_bytes=0)
    with budget.step():
        (torch.ones(600, requires_grad=True) * 2).exp().sum().backward()
    store = reprise.compressed_store("int8")
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    chain = reprise.profile_chain(layers, x)
    schedule = reprise.planners.sqrt(chain)
    estimate = reprise.estimate(torch.nn.Linear(4, 4), x)
    runner = reprise.Pgac(lossy=reprise.LossyOptions(gradient_error=0.1))
    runner.run(layers, x).sum().backward()
    runner.observe(0)
    plan = pipeline(bytes="8MB", chunks=2).plan(torch.ones(8, 8))
    return [
        budget.report(), max(log.take(), key=lambda event: len(event.results)), store.park_as(torch.rand(600), "int8")[1],
        store.totals()["int8"], store.statistics(), chain, chain.stages[0], schedule, reprise.planners.evaluate(chain, schedule),
        reprise.Machine(flops=2.0), estimate, estimate.trace, estimate.trace.simulate("1GB"),
        reprise.planners.hindsight(estimate.trace, "1GB", moves=5), reprise.LossyOptions(seed=3), runner.layers[0], runner.report(),
        plan, plan.stages[0], plan.stages[0].micro_batches[0], plan.timeline, plan.timeline.workers[0],
        plan.timeline.workers[0].events[0], reprise.schedules.activation_lives(reprise.schedules.gpipe(2, 4))[0]]


def test_results_are_pickled_copied_and_written_as_json(tmp_path):
    for each in records(tmp_path):
        text = json.dumps(each.as_dict())
        assert set(json.loads(text)) == {name for name, kind in vars(type(each)).items() if isinstance(kind, property)}
        for again in (pickle.loads(pickle.dumps(each)), copy.copy(each), copy.deepcopy(each)):
            assert type(again) is type(each) and repr(again) == repr(each) and json.dumps(again.as_dict()) == text


def test_schedules_of_pipelines_and_their_actions_are_copied():
    schedule = reprise.schedules.gpipe(2, 4)
    action = schedule.workers[0][0][0]
    for again in (pickle.loads(pickle.dumps((schedule, action))), copy.deepcopy((schedule, action))):
        assert again == (schedule, action) and again[0].name == "gpipe"


def test_a_pickle_of_another_version_says_so():
    report = reprise.MemoryBudget("1GiB").report()
    with pytest.raises(reprise.UsageError, match="^StepReport: the pickle has 1 values, and this version of reprise has "):
        type(report).__new__(type(report)).__setstate__((1,))


def test_a_share_is_refused_where_no_step_is_known_and_the_error_says_who_takes_one():
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(2, 4)
    for name, call in (("MemoryBudget: the limit", lambda: reprise.MemoryBudget("60%")),
                       ("MemoryBudget: the limit", lambda: reprise.auto_checkpoint(model, memory_budget="60%")),
                       ("segments", lambda: reprise.checkpoint_sequential(model, "60%", x))):
        with pytest.raises(reprise.UsageError) as raised:
            call()
        assert str(raised.value) == (
            name + " is '60%', and this call knows no step to take a share of; give bytes, such as \"8GiB\". "
            "MemoryBudget.fraction_of_device(0.6) takes a share of the device's bytes. "
            "`reprise run --budget 60%` and reprise.compile(memory_budget=\"60%\") take a share of a step")
    with pytest.raises(reprise.UsageError, match="it has no number in front"):
        reprise.MemoryBudget("many%")
    for fraction in ("60%", None):
        with pytest.raises(reprise.UsageError) as raised:
            reprise.MemoryBudget.fraction_of_device(fraction)
        assert str(raised.value) == f"MemoryBudget: the fraction of the device is {fraction!r}; give a number above 0 and at most 1"


def test_objects_show_their_figures(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    log, pin = reprise.EventLog(), reprise.Pin(torch.ones(2))
    shown = [repr(reprise.MemoryBudget("8GiB", device="cpu")), repr(reprise.MemoryBudget.fraction_of_device(0.5, device="cpu")),
             repr(log), repr(pin), repr(reprise.PeakScope("cpu")), repr(reprise.Pipeline(network, balance=[1, 1])),
             repr(reprise.value_weights({"aten::mm": 2.0})), repr(reprise.value_weights(lambda name, kind, number: 1.0)),
             repr(reprise.influence_weights())]
    half = reprise.MemoryBudget.fraction_of_device(0.5).limit
    assert shown[:4] == ["MemoryBudget(limit=8589934592, device='cpu')", f"MemoryBudget(limit={half}, device='cpu')",
                         "<EventLog: 0 events>", "<Pin: holds the bytes>"]
    assert shown[4].startswith("PeakScope(peak=") and shown[4].endswith(", peak_above_start=0, device='cpu')")
    assert shown[5:] == ["<Pipeline: 2 layers in 2 stages>", "<ValueWeights of 1 operator names>", "<ValueWeights by a function>",
                         "<ValueWeights by influence>"]
    pin.release()
    assert repr(pin) == "<Pin: released>"
    timeline = reprise.schedules.simulate(reprise.schedules.gpipe(2, 4))
    assert repr(timeline).startswith("PipelineTimeline(name='gpipe', time=") and timeline._repr_html_() == timeline.svg()


def test_all_public_names_are_listed_before_they_are_loaded():
    listed = subprocess.run([sys.executable, "-c", "import reprise; print(*dir(reprise))"], capture_output=True, text=True, check=True)
    assert set(reprise.__all__) | {"__version__"} <= set(listed.stdout.split())


def test_classes_that_calls_make_cannot_be_made_by_hand():
    made = [each for each in bound_classes() if each.__init__ is not object.__init__]
    assert len(made) > 30
    for each in made:
        with pytest.raises((TypeError, reprise.UsageError)):
            each(object(), object(), object(), object(), object())


def test_a_subclass_has_to_make_its_base():
    class Forgets(reprise.MemoryBudget):
        def __init__(self):
            pass

    class Keeps(reprise.MemoryBudget):
        def __init__(self):
            super().__init__("1GiB")
            self.count = 3

    with pytest.raises(TypeError, match="__init__.* must be called"):
        Forgets()
    assert Keeps().count == 3 and Keeps().limit == 2**30


def test_a_step_keeps_its_budget():
    step = reprise.MemoryBudget("1GiB").step()
    gc.collect()
    with step:
        torch.ones(4, requires_grad=True).sum().backward()
    step.finish()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_step_that_nobody_ends_lets_go_of_what_it_held(elsewhere):
    found = []

    def opens(kept):
        step = reprise.MemoryBudget("1GiB").step()
        step.__enter__()
        y = torch.ones(1 << 18) * 2
        y.data_ptr()  # stays in place until no step is open
        del y
        kept.append(step)
        del step
        found.append(reprise.live_bytes())
        if not elsewhere:
            kept.clear()
            found.append(_reprise.is_in_step())

    kept = []
    # A step is its thread's, and one that ends elsewhere leaves marks on it.
    thread = threading.Thread(target=opens, args=(kept,))
    thread.start()
    thread.join()
    kept.clear()
    assert reprise.live_bytes() <= found[0] - (1 << 20)
    assert elsewhere or not found[1]


def test_a_step_ended_on_another_thread_says_so():
    step = reprise.MemoryBudget("1GiB").step()
    step.__enter__()
    said = []

    def ends():
        with pytest.raises(reprise.UsageError, match="a step ends on the thread that entered it"):
            step.__exit__(None, None, None)
        said.append(True)

    thread = threading.Thread(target=ends)
    thread.start()
    thread.join()
    step.__exit__(None, None, None)
    assert said and not _reprise.is_in_step()
