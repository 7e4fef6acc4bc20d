"""The steps of `scripts/gpu run` go on where a call has ended, its searches find the largest batch, its page shows what the
steps gave, and torch's side of the models trains the same network under every strategy."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/gpu"))
import models  # noqa: E402
import race  # noqa: E402
import report  # noqa: E402
import run as gpu_run  # noqa: E402
import steps as steps_module  # noqa: E402
from steps import OutOfTime, Steps  # noqa: E402

SHAPE = models.Shape(layers=2, width=32, heads=2, context=16, batch=8, steps=2, limit=1000)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="reprise-gpu-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def steps(self, seconds=3600, fresh=False):
        return Steps(self.folder, "part", time.monotonic() + seconds, fresh=fresh)


class Resumed(InFolder):
    def test_a_step_that_has_ended_well_is_not_run_again_by_a_later_call(self):
        appends = ["sh", "-c", f"echo 5; echo run >>{self.folder}/runs"]
        first = self.steps().run("one", appends, read=int)
        later = self.steps().run("one", appends, read=int)
        self.assertEqual((first["state"], first["result"]), ("done", 5))
        self.assertEqual(later, first)
        self.assertEqual((self.folder / "runs").read_text(), "run\n")
        self.steps(fresh=True).run("one", appends)
        self.assertEqual((self.folder / "runs").read_text(), "run\nrun\n")

    def test_a_step_that_failed_keeps_its_code_and_the_end_of_its_log_and_is_tried_again(self):
        self.steps().run("one", ["sh", "-c", "echo no room; exit 4"])
        record = json.loads((self.folder / "part.json").read_text())["one"]
        self.assertEqual((record["state"], record["exit_code"], record["end_of_log"]), ("failed", 4, "no room\n"))
        self.assertEqual(self.steps().run("one", ["true"])["state"], "done")

    def test_an_exit_code_that_is_a_result_is_no_failure(self):
        record = self.steps().run("one", ["sh", "-c", "exit 4"], read=int, states={4: "does not fit"})
        self.assertEqual(record["state"], "does not fit")
        self.assertTrue(self.steps().ended_well("one"))

    def test_a_program_that_is_missing_and_a_result_that_cannot_be_read_are_failures(self):
        self.assertEqual(self.steps().run("one", [self.folder / "nothing"])["exit_code"], 127)
        self.assertEqual(self.steps().run("two", ["echo", "text"], read=int)["state"], "failed")

    def test_without_time_no_step_begins_and_a_running_one_is_stopped_with_its_children(self):
        with self.assertRaises(OutOfTime):
            self.steps(seconds=1).run("one", ["touch", self.folder / "begun"])
        self.assertFalse((self.folder / "begun").exists())
        shortest, steps_module.SHORTEST = steps_module.SHORTEST, 0
        self.addCleanup(setattr, steps_module, "SHORTEST", shortest)
        with self.assertRaises(OutOfTime):
            self.steps(seconds=0.5).run("two", ["sh", "-c", "sleep 3600 & wait"])
        self.assertEqual(json.loads((self.folder / "part.json").read_text())["two"]["state"], "stopped")


class Searches(InFolder):
    def cases(self):
        cases = models.Cases(self.steps(), None, SHAPE)
        cases.steps.note("x", {"peak_bytes": 280})
        return cases

    def attempt(self, peak_of_batch):
        self.tried = []

        def call(_, batch):
            self.tried.append(batch)
            return {"state": "done", "result": {"peak_bytes": peak_of_batch(batch)}}
        return call

    def test_the_largest_batch_by_peak_is_where_the_line_of_two_peaks_ends(self):
        cases = self.cases()
        models.largest_by_peak(cases, "x", self.attempt(lambda batch: 200 + 10 * batch), 1000)
        self.assertEqual(self.tried, [16, 80])
        self.assertEqual(cases.steps.done["largest: x"]["result"], {"batch": 80, "peak_bytes": 1000, "limit_bytes": 1000})

    def test_a_batch_whose_measured_peak_is_above_the_limit_is_not_taken(self):
        cases = self.cases()
        models.largest_by_peak(cases, "x", self.attempt(lambda batch: 200 + 10 * batch + (batch > 79)), 1000)
        self.assertEqual(self.tried, [16, 80, 79])
        self.assertEqual(cases.steps.done["largest: x"]["result"]["batch"], 79)

    def test_the_largest_batch_by_budget_is_found_between_one_that_fits_and_one_that_fails(self):
        cases = self.cases()

        def reprise(_, budget, batch, steps):
            self.assertEqual((budget, steps), ("1000", 4))
            ended = {"state": "done", "result": {"peak_bytes": 900, "tokens_per_s": 1.0}}
            return ended if batch <= 37 else {"state": "does not fit"}
        cases.reprise = reprise
        models.largest_by_budget(cases, 16, 1000)
        self.assertEqual(cases.steps.done["largest: reprise budget"]["result"]["batch"], 37)


class Bench(InFolder):
    def test_each_benchmark_with_a_device_is_a_step_and_the_accelerators_is_measured_under_both_allocators(self):
        program = self.folder / "bin/reprise_bench"
        program.parent.mkdir()
        # Lists two benchmarks, and misses a bar.
        program.write_text("""#!/bin/sh
if [ "$1" = --list ]; then printf 'hooks       what\\naccelerator what\\n'; exit 0; fi
echo "{\\"case\\": \\"$*$PYTORCH_CUDA_ALLOC_CONF\\"}"; exit 1
""")
        program.chmod(0o755)
        steps = self.steps()
        with mock.patch.object(gpu_run, "BUILD", self.folder):
            gpu_run.bench(steps, argparse.Namespace(quick=True))
        self.assertEqual({name: [each["case"] for each in step["result"]] for name, step in steps.done.items()}, {
            "accelerator": ["accelerator --device cuda:0 --json --quick"],
            "accelerator with expandable segments": ["accelerator --device cuda:0 --json --quickexpandable_segments:True"],
            "hooks": ["hooks --device cuda:0 --json --quick"]})


class Race(InFolder):
    def test_strategies_run_round_by_round_and_one_that_fails_says_why(self):
        # As peers.py: the steps of `plain` take 5 ms, those of others 10; one has no room at first, and one later.
        peers = self.folder / "peers.py"
        peers.write_text("""
import json, subprocess, sys
case = sys.argv[sys.argv.index("--case") + 1]
step = lambda: print(json.dumps({"ms": 5 if case == "plain" else 10, "peak_bytes": 7}))
wait = lambda: print(json.dumps({"waits": True}), flush=True)
if case == "reprise-compile:20%": sys.exit("the least is 3 bytes")
step()
wait()
for line in sys.stdin:
    if case == "compile:1": sys.exit("no room")
    print("a line of a library")
    [step() for _ in range(int(line))]
    wait()
graph = dict(predicted_peak=6, default_peak=9, predicted_seconds=1, planning_seconds=2, more=3)
subprocess.Popen(["sleep", "5"])  # a compiler that lives on
print(json.dumps({"graphs": [graph] if case.startswith("reprise") else []}), flush=True)
""")
        options = argparse.Namespace(rounds=3, batch=2, context=16)
        figures = {each["case"]: each for each in race.race(options, [sys.executable, str(peers)])}
        self.assertEqual(list(figures), list(race.CASES))
        self.assertEqual(figures["plain"], {"case": "plain", "ms": 5, "spread": 0, "tokens_per_s": 6400, "peak_bytes": 7,
                                            "first_ms": 5, "graphs": []})
        self.assertEqual(figures["reprise-compile:60%"]["graphs"], [
            {"predicted_peak": 6, "default_peak": 9, "predicted_seconds": 1, "planning_seconds": 2}])
        self.assertEqual(figures["reprise-compile:20%"], {"case": "reprise-compile:20%", "failed": "the least is 3 bytes"})
        self.assertEqual(figures["compile:1"], {"case": "compile:1", "failed": "no room"})


class Python(InFolder):
    def test_the_device_s_tests_come_first_and_the_others_see_no_device(self):
        program = self.folder / "python"
        # As pytest: says what it was called with, and writes a report.
        program.write_text("""#!/bin/sh
echo "$* CUDA=${CUDA_VISIBLE_DEVICES-all} $PYTHONPATH" >>"$(dirname "$0")/calls"
for each; do case $each in --junit-xml=*) echo '<testsuites><testsuite name="pytest"><testcase/></testsuite></testsuites>' \
  >"${each#--junit-xml=}";; esac; done
""")
        program.chmod(0o755)
        steps = self.steps()
        with mock.patch.multiple(gpu_run, STATE=self.folder, SITE=self.folder / "site", wheels=lambda: [self.folder / "x.whl"]), \
                mock.patch.object(sys, "executable", str(program)):
            gpu_run.python(steps, argparse.Namespace(jobs=2))
        install, device, compiled, others = (self.folder / "calls").read_text().splitlines()
        self.assertIn(f"--target {self.folder}/site {self.folder}/x.whl", install)
        self.assertRegex(device, rf"test_device\.py CUDA=all {self.folder}/site")
        self.assertRegex(compiled, r"test_device_compiled\.py -rP CUDA=all ")
        self.assertRegex(others, r"tests/python .*CUDA= ")
        self.assertEqual(steps.done["all on the CPU"]["result"]["passed"], 1)


class Page(unittest.TestCase):
    def test_tests_figures_models_and_failures_are_shown(self):
        ended = {"state": "done", "seconds": 1.5, "date": "2026-11-25", "command": "x"}
        parts = {
            "tests": {"device": {**ended, "result": {"passed": 7, "failures": ["device: A.B"], "skipped": {"no reason": 2}}}},
            "bench": {"accelerator": {**ended, "result": [
                {"case": "plain", "ours": 0.25, "peer": 0.5, "unit": "s", "ratio": 0.5, "runs": 9, "spread": 0.1}]}},
            "compiled": {"gpt": {**ended, "result": [
                {"case": "reprise-compile:50%", "tokens_per_s": 1e5, "ms": 81.0, "spread": 0.01, "peak_bytes": 6e9, "first_ms": 9000,
                 "graphs": [{"predicted_peak": 2e9, "planning_seconds": 3.0}]},
                {"case": "reprise-compile:35%", "failed": "the least is 3 bytes"}]}},
            "models": {"reprise plain": {**ended, "result": {
                "batch": 8, "tokens_per_s": 100000.0, "ms": 80.0, "first_ms": 200.0, "peak_bytes": 12_000_000_000,
                "last_peak_bytes": 11_000_000_000, "card_mib": 15000}},
                "torch plain": {"state": "failed", "exit_code": 1, "command": "x"},
                "largest: reprise plain": {"state": "done", "result": {"batch": 44, "peak_bytes": 39e9, "limit_bytes": 40e9}}}}
        facts = {"gpus": ["NVIDIA H100"], "processor": "p", "cores": 16, "memory_bytes": 1, "system": "s", "kernel": "k",
                 "compiler": "c", "nvcc": "13", "python": "3.12", "torch": {"version": "2.11.0+cu130", "cuda": "13.0"}}
        text = report.page({"date": "2026-11-25", "commit": "abc", "machine": facts, "parts": parts})
        for part in ("NVIDIA H100", "2.11.0+cu130, CUDA 13.0", "device: 7 passed, 1 failed, 2 skipped.", "FAILED device: A.B",
                     "skipped 2: no reason", "| plain | 0.25 | 0.5 | s | 0.5 | 9 | 0.1 |",
                     "| reprise-compile:50% | 100,000 | 81 | 0.01 | 6 | 2 | 9 | 3 |", "| reprise-compile:35% | the least is 3 bytes |", "| reprise plain | 8 | 100,000 | 80 | 200 | 12 | 11 |",
                     "| torch plain | failed, exit code 1 |", "| reprise plain | 44 | 39 | 40 |"):
            self.assertIn(part, text)


class Peers(unittest.TestCase):
    def losses(self, case, *more):
        options = [str(each) for each in SHAPE.options(batch=2, steps=2)]
        done = subprocess.run([sys.executable, models.PEERS, "--case", case, *options, "--device", "cpu", *more],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["loss"] for line in done.stdout.splitlines() if "loss" in line]

    def test_every_strategy_of_torch_trains_the_same_network(self):
        plain = self.losses("plain")
        self.assertEqual(len(set(plain)), 2)
        for case in ("every-block", "selective"):
            self.assertEqual(self.losses(case), plain, case)
        plain = self.losses("plain", "--network", "llama")
        self.assertEqual(self.losses("every-block", "--network", "llama"), plain)

    def test_an_unknown_case_is_named_beside_the_known_ones(self):
        done = subprocess.run([sys.executable, models.PEERS, "--case", "none", *map(str, SHAPE.options(1, 1))], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no case 'none'; give one of plain, every-block, selective, compile:R, ", done.stderr)


if __name__ == "__main__":
    unittest.main()
