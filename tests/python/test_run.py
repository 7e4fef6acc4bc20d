"""`reprise run`: scripts that are not changed train within bytes, to the same losses."""

import contextlib
import gc
import io
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import torch

import reprise
from reprise.running.asked import Asked, Measured
from reprise.running.command import main

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
LINE = re.compile(r"^reprise: peak .* of .* in \d+ steps, dropped \d+ values \(.*\), replayed \d+ operators, [\d.]+ s lost "
                  r"\([\d.]+% of the run\)", re.MULTILINE)


@contextlib.contextmanager
def as_main():
    """What a program changes is as before afterwards."""
    main_module, argv, path, hook = sys.modules["__main__"], sys.argv, list(sys.path), sys.excepthook
    sys.excepthook = sys.__excepthook__  # torch.distributed has one of its own
    random = torch.get_rng_state()
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:], sys.excepthook = main_module, argv, path, hook
        torch.set_rng_state(random)


def plain(script, *arguments):
    """What the script prints by itself."""
    with as_main(), contextlib.redirect_stdout(io.StringIO()) as out:
        sys.argv = [str(script), *arguments]
        sys.path[0] = str(script.parent)
        torch.manual_seed(7)
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()


def managed(*arguments):
    """What the script prints under `reprise run`, what reprise says, and the exit code."""
    gc.collect()  # what other tests left would count in the measured steps, and be gone in those after
    code = 0
    with as_main(), contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        torch.manual_seed(7)
        try:
            main([str(each) for each in arguments])
        except SystemExit as error:
            code = error.code
    return out.getvalue(), errors.getvalue(), code


CASES = [("modules", "30%"), ("by_hand", "50%"), ("functional", "50%"), ("accumulate", "50%"), ("two_optimizers", "70%"),
         ("closure", "50%"), ("in_backward", "50%")]


@pytest.mark.parametrize("name, budget", CASES)
def test_a_script_trains_within_a_share_of_its_activations_to_the_same_losses(name, budget, tmp_path):
    script, report = SCRIPTS / f"{name}.py", tmp_path / "report.json"
    expected = plain(script)
    out, errors, code = managed("--budget", budget, "--report", report, script)
    assert (out, code) == (expected, 0), errors
    assert LINE.search(errors), errors
    assert f"a plain step needs" in errors and f"--budget {budget} is a limit of" in errors
    figures = json.loads(report.read_text())
    assert figures["budget"] == budget and figures["steps"] >= 2
    assert figures["dropped"] > 0 and figures["peak"] <= figures["limit"] < figures["plain"]["peak"]
    assert figures["plain"]["least"] <= figures["limit"]


def test_what_a_failed_backward_has_left_is_freed_where_the_script_goes_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
sys.path.append({str(pathlib.Path(__file__).parent)!r})
import reprise, torch
from test_budget import fail_in_backward
weight = torch.ones(8, requires_grad=True)
before = reprise.live_bytes()
try:
    fail_in_backward()
except KeyError:
    pass
print(reprise.live_bytes() - before)
weight.sum().backward()
""")
    out, errors, code = managed("--budget", "4GiB", script)
    assert (out, code) == ("0\n", 0), errors


@pytest.mark.parametrize("budget", ["60%", "+4MB", "least"])
def test_what_an_optimizer_keeps_more_with_each_step_is_no_step_s_need(budget, tmp_path):
    script, report = SCRIPTS / "closure.py", tmp_path / "report.json"
    expected = plain(script, "100")
    out, errors, code = managed("--budget", budget, "--report", report, script, "100")
    assert (out, code) == (expected, 0) and "needed more than the least" not in errors, errors
    figures = json.loads(report.read_text())
    assert figures["steps"] == 6 and figures["dropped"] > 0 and figures["peak"] <= figures["limit"]


LOOP = """
import contextlib, reprise, torch
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(6)])
optimizer, budget = torch.optim.SGD(model.parameters(), .1), reprise.MemoryBudget("8GiB")
for step in range(8):
    held = {held}
    with {within}:
        loss = model(torch.randn(512, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
"""


def test_what_is_live_before_one_step_is_no_room_for_later_ones(tmp_path):
    script, report = tmp_path / "holds.py", tmp_path / "report.json"
    script.write_text(LOOP.format(held="torch.zeros(5_000_000) if step == 4 else None", within="contextlib.nullcontext()"))
    expected = plain(script)
    out, errors, code = managed("--budget", "50%", "--report", report, script)
    assert (out, code) == (expected, 0), errors
    figures = json.loads(report.read_text())
    assert figures["limit"] < 20_000_000 < figures["peak"]


@pytest.mark.parametrize("every", [1, 3])
def test_a_limit_is_that_of_the_optimizer_whose_step_needs_most(every, tmp_path):
    script, report = SCRIPTS / "alternating.py", tmp_path / "report.json"
    out, errors, code = managed("--budget", "60%", "--report", report, script, every)
    assert (out, code) == (plain(script, str(every)), 0), errors
    figures = json.loads(report.read_text())
    assert figures["steps"] > 0 and figures["dropped"] > 0 and figures["peak"] <= figures["limit"] < figures["plain"]["peak"]


def test_an_optimizer_that_never_steps_does_not_put_off_the_limit(tmp_path):
    script = tmp_path / "unused.py"
    script.write_text("import torch\nfrom small import loss_of, network\nmodel, unused = network(), network()\n"
                      "optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, unused)]\n"
                      "for _ in range(14):\n    loss_of(model).backward()\n    optimizers[0].step()\n    optimizers[0].zero_grad()\n")
    (tmp_path / "small.py").write_text((SCRIPTS / "small.py").read_text())
    _, errors, code = managed("--budget", "50%", script)
    assert code == 0 and " in 2 steps" in errors, errors


def test_a_script_that_ends_with_its_measured_steps_is_told_their_peak(tmp_path):
    script = tmp_path / "short.py"
    script.write_text("import torch\nfrom small import loss_of, network\nmodel = network()\n"
                      "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
                      "for _ in range(2):\n    loss_of(model).backward()\n    optimizer.step()\n    optimizer.zero_grad()\n")
    (tmp_path / "small.py").write_text((SCRIPTS / "small.py").read_text())
    _, errors, code = managed("--budget", "50%", script)
    assert code == 0 and re.search(r"^reprise: no step came to its end within the limit of [\d.]+ MB; the 2 steps that were measured "
                                   r"had a peak of [\d.]+ MB$", errors, re.MULTILINE), errors


def test_workers_of_data_loaders_are_not_bound():
    script = SCRIPTS / "workers.py"
    expected = plain(script, "fork")
    for start in ("fork", "spawn"):
        out, errors, code = managed("--budget", "50%", script, start)
        assert (out, code) == (expected, 0), errors
        assert LINE.search(errors), errors
        assert len(errors.splitlines()) == 2, errors


def limit_of(budget):
    script = SCRIPTS / "modules.py"
    out, errors, code = managed("--budget", budget, "--report", os.devnull, script)
    return out == plain(script) and code == 0, errors


def test_bytes_above_those_live_and_the_least_are_budgets():
    for budget in ("+3MB", "least", "1GiB"):
        same, errors = limit_of(budget)
        assert same and LINE.search(errors), errors


def test_evaluation_that_needs_more_passes_the_limit_and_is_told():
    same, errors = limit_of("least")
    assert same and re.search(r"; between the steps [\d.]+ MB$", errors, re.MULTILINE), errors


@pytest.mark.parametrize("budget", ["1%", "+100KB", "200KB"])
def test_a_budget_below_the_least_is_told_before_the_script_goes_on(budget):
    out, errors, code = managed("--budget", budget, SCRIPTS / "by_hand.py")
    assert code == 2 and len(out.splitlines()) <= 1, (out, errors)
    assert re.fullmatch(rf"reprise: error: --budget {re.escape(budget)} is [\d.]+ [KM]?B \(\d+ bytes\), and a step needs at least "
                        rf"[\d.]+ MB \(\d+ bytes\).*; raise --budget, or make the batch smaller\n", errors), errors


@pytest.mark.parametrize("arguments, text", [
    (["--budget", "8GoB", "x.py"], "reprise run: --budget is '8GoB'; give bytes (8GiB, 400MB), bytes above"),
    (["--budget", "120%", "x.py"], "reprise run: --budget is '120%': a share is above 0% and at most 100%"),
    (["--budget", "+40%", "x.py"], "reprise run: --budget is '+40%': a share is above 0% and at most 100%"),
    (["--budget=-3MB", "x.py"], "reprise run: --budget is '-3MB': it must be above 0"),
    (["--budget", "1GB", "no_such.py"], "reprise run: the script 'no_such.py' cannot be read: No such file or directory"),
    (["--budget", "1GB", str(SCRIPTS)], "is a folder; give a script, or -m and a module"),
    (["--budget", "1GB", "-m", "no.such"], "reprise run: no module 'no.such' can be run"),
    (["x.py"], "reprise run: the following arguments are required: --budget\n"),
    (["--budget", "1GB"], "reprise run: the following arguments are required: SCRIPT\n"),
    (["--budget", "1GB", "--device", "cuda:99", str(SCRIPTS / "small.py")], "reprise run: --device is 'cuda:99': "),
    (["--budget", "1GB", "--device", "foo", str(SCRIPTS / "small.py")], "reprise run: --device is 'foo': ")])
def test_what_cannot_be_run_is_one_line_and_exit_code_2(arguments, text):
    out, errors, code = managed(*arguments)
    assert (out, code, len(errors.splitlines())) == ("", 2, 1) and text in errors, errors


@pytest.mark.parametrize("end", ["", "import sys; sys.exit()", "raise SystemExit(0)"])
def test_a_script_that_never_runs_a_backward_is_told(end, tmp_path):
    script = tmp_path / "idle.py"
    script.write_text(end)
    out, errors, code = managed("--budget", "1GB", script)
    assert (out, code) == ("", 2)
    assert errors == f"reprise run: {script} ran no backward, so there was nothing to keep within bytes\n"


def test_a_script_that_catches_everything_trains_no_further_once_it_is_refused(tmp_path):
    script, report = tmp_path / "catches.py", tmp_path / "report.json"
    script.write_text("""
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), .1)
for step in range(5):
    try:
        model(torch.randn(512, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step)
    except BaseException as error:
        print(type(error).__name__)
raise SystemExit(0)
""")
    out, errors, code = managed("--budget", "1%", "--report", report, script)
    assert (out, code) == ("0\nRefused\nRefused\nRefused\nRefused\n", 2)
    assert errors.startswith("reprise: error: --budget 1% is ") and len(errors.splitlines()) == 1
    figures = json.loads(report.read_text())
    assert errors == f"reprise: error: {figures['refused']}\n" and figures["limit"] is None and figures["steps"] == 0


def test_a_script_that_trains_in_processes_of_its_own_is_told_that_they_are_not_bound():
    command = [sys.executable, "-m", "reprise", "run", "--budget", "1GB", str(SCRIPTS / "processes.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "trained" in done.stdout
    assert "ran no backward, so there was nothing to keep within bytes; processes that it started itself are not bound: give " \
           "each a budget by `torchrun ... -m reprise run`" in done.stderr


def test_exceptions_and_exit_codes_are_the_script_s(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys, torch\ntorch.ones(3, requires_grad=True).sum().backward()\n"
                      "if sys.argv[1] == 'exit': sys.exit(7)\nraise KeyError(sys.argv[1])\n")
    assert managed("--budget", "1GB", script, "exit")[2] == 7
    with as_main(), contextlib.redirect_stderr(io.StringIO()) as errors, pytest.raises(KeyError, match="mine"):
        try:
            main(["--budget", "1GB", str(script), "mine"])
        except KeyError:
            sys.excepthook(*sys.exc_info())
            raise
    lines = errors.getvalue().splitlines()
    trace = lines[lines.index("Traceback (most recent call last):"):]
    assert trace[1].startswith(f'  File "{script}", line 4') and trace[-1] == "KeyError: 'mine'"


def test_a_script_is_compiled_and_finds_its_neighbours_as_by_python(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("value = 3\n")
    script, link = tmp_path / "real" / "train.py", tmp_path / "link.py"
    script.write_text("import torch, neighbour\ndef f(x: int): pass\nprint(f.__annotations__, neighbour.value)\n"
                      "torch.ones(1, requires_grad=True).sum().backward()\n")
    link.symlink_to(script)
    out, errors, code = managed("--budget", "1GiB", link)
    sys.modules.pop("neighbour", None)
    assert (out, code) == ("{'x': <class 'int'>} 3\n", 0), errors


def test_a_script_may_have_steps_of_its_own(tmp_path):
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(LOOP.format(held="None", within="budget.step()"))
    expected = plain(script)
    out, errors, code = managed("--budget", "60%", "--report", report, script)
    assert (out, code) == (expected, 0), errors
    written = json.loads(report.read_text())
    assert written["steps"] == 6 and written["dropped"] > 0  # two were measured


def test_a_module_sees_its_name_and_arguments(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("")
    (tmp_path / "mine/train.py").write_text(
        "import sys, torch\nfrom . import __name__ as package\ntorch.ones(3, requires_grad=True).sum().backward()\n"
        "print(__name__, package, sys.argv[1:], __spec__.name)\n")
    monkeypatch.chdir(tmp_path)
    out, errors, code = managed("--budget", "1GB", "-m", "mine.train", "--budget", "3")
    assert (out, code) == ("__main__ mine ['--budget', '3'] mine.train\n", 0), errors


def test_a_limit_follows_from_what_a_plain_step_showed():
    found = Measured(live=100, peak=1100, least=300)
    assert [Asked.parse(text).limit(found) for text in ("40%", "least", "+500", "700")] == [500, 306, 600, 700]
    assert Asked.parse("40%").refusal(found) is None
    assert "a step needs at least 300 B (300 bytes): 20% of its activations" in Asked.parse("10%").refusal(found)
    with pytest.raises(reprise.UsageError, match="above 0% and at most 100%"):
        Asked.parse("nan%")
