"""tools/pgac_experiment: statistics on numbers whose results are known, verdicts on logs made up for them, and the whole of it on
a program that is quick. Skipped where its packages are not installed."""

import contextlib
import importlib
import importlib.util
import io
import json
import math
import os
import pathlib
import stat
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/pgac_experiment"
NEEDED = ["filelock", "matplotlib", "pandas", "scipy", "sklearn", "statsmodels", "tabulate"]
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
# The python3 that `scripts/setup --experiments` has given the packages, where this one lacks them.
OTHER = ROOT / ".venv-experiments/bin/python3"
if MISSING and OTHER.exists() and "REPRISE_TRIED_OTHER" not in os.environ:
    os.execve(OTHER, [str(OTHER), *sys.argv], {**os.environ, "REPRISE_TRIED_OTHER": "1"})

if not MISSING:
    sys.path.insert(0, str(TOOL))
    claims, errors, logs, plan, run, runs, stats = (importlib.import_module(name) for name in (
        "claims", "errors", "logs", "plan", "run", "runs", "stats"))

needs_packages = unittest.skipIf(MISSING, f"no module {', '.join(MISSING)}: `scripts/setup --experiments` installs them")

# Stands for `reprise`: writes a log whose figures depend on the method and the seed alone.
PROGRAM = """\
#!{python}
import json, sys
if sys.argv[1] == "--version":
    print("reprise 0.0.0 (LibTorch 0)")
    sys.exit()
given = dict(zip(sys.argv[2::1], sys.argv[3::1]))
method, seed, steps = given["--method"], int(given["--seed"]), int(given["--steps"])
if method == "dtr" and given["--model"] == "bert":
    print("reprise train: the budget is too small", file=sys.stderr)
    sys.exit(4)
slow = {{"none": 0.0, "uniform": 0.2}}.get(method, 0.05)
lines = [dict(kind="run", version="0.0.0", libtorch="0", machine=dict(processor="p", cores=2, threads=1, device="cpu"), seed=seed,
              options={{}}, model="M", data="D", fingerprint="f", units="tokens", layers=["b", "head"], exact=True,
              budget_bytes=None if method == "none" else 1000, live_before_step_bytes=None if method == "none" else 1)]
for step in range(1, steps + 1):
    one = 1 + slow + seed * 1e-3
    line = dict(kind="step", step=step, loss=4 - 0.1 * step, seconds=one, forward_seconds=0.3, backward_seconds=one - 0.4,
                recompute_seconds=slow * (1 + seed * 1e-3), packing_seconds=0.0, tape_seconds=0.0, peak_bytes=900, live_bytes=1,
                units=10)
    if method.startswith("pgac"):
        line.update(wanted="10", mask="01", by_search=True, scores=[1, 2], averages=[1, None], gamma=1, threshold=None)
    lines.append(line)
lines.append(dict(kind="end", validation_loss=3.0, accuracy=None, weights_xxh3="0"))
with open(given["--log"], "w") as file:
    file.write("".join(json.dumps(line) + "\\n" for line in lines))
"""


@needs_packages
class Statistics(unittest.TestCase):
    def test_the_interval_is_students(self):
        # Four values with mean 2.5 and standard error 0.6455; t for three degrees of freedom is 3.1824.
        found = stats.interval_of([1, 2, 3, 4])
        self.assertAlmostEqual(found.mean, 2.5)
        self.assertAlmostEqual(found.low, 2.5 - 3.182446 * 0.6454972, 5)
        self.assertAlmostEqual(found.high, 2.5 + 3.182446 * 0.6454972, 5)
        self.assertTrue(math.isnan(stats.interval_of([7]).low))
        self.assertEqual(stats.interval_of([5, 5, 5]), stats.Interval(5, 5, 5))

    def test_ratios_are_geometric_and_paired(self):
        found = stats.ratio_of([2, 4, 8], [1, 2, 4])
        self.assertAlmostEqual(found.mean, 2)
        self.assertAlmostEqual(found.low, 2)
        self.assertAlmostEqual(stats.ratio_of([1, 4], [1, 1]).mean, 2)
        for ours, theirs in (([1, 2], [1]), ([1, 0], [1, 1]), ([], [])):
            with self.assertRaises(ValueError):
                stats.ratio_of(ours, theirs)

    def test_p_is_that_of_the_paired_t_test(self):
        # Student's sleep data: t = -4.0621 with nine degrees of freedom, p = 0.00283.
        ours = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
        theirs = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
        p = stats.p_of_mean([a - b for a, b in zip(ours, theirs)], 0)
        self.assertAlmostEqual(p, 0.002833, 6)
        self.assertEqual(stats.p_of_ratio([2, 2], [1, 1], 2), 1.0)
        self.assertEqual(stats.p_of_ratio([2, 2], [1, 1], 1), 0.0)
        self.assertTrue(math.isnan(stats.p_of_ratio([2], [1])))

    def test_holm_corrects_for_the_p_values_that_are_known(self):
        found = stats.holm([0.01, math.nan, 0.04, 0.03])
        self.assertAlmostEqual(found[0], 0.03)
        self.assertTrue(math.isnan(found[1]))
        self.assertAlmostEqual(found[2], 0.06)
        self.assertAlmostEqual(found[3], 0.06)


@needs_packages
class Verdicts(unittest.TestCase):
    def verdict(self, claim, mean, p):
        return claims.verdict_of(claims.Judged("gpt", "pgac", claim, stats.Interval(mean), p_holm=p))[0]

    def test_the_corrected_test_and_the_side_of_the_bound_decide(self):
        less, more = claims.GAINS[0], claims.GAINS[-1]
        for claim, mean, p, expected in ((less, 0.5, 0.01, claims.SUPPORTED), (less, 0.9, 0.01, claims.REFUTED),
                                         (less, 0.5, 0.20, claims.NOT_SETTLED), (more, 1.3, 0.01, claims.SUPPORTED),
                                         (more, 1.0, 0.01, claims.REFUTED), (more, 1.3, math.nan, claims.NOT_SETTLED),
                                         (claims.QUALITY, 1.001, 0.01, claims.SUPPORTED),
                                         (claims.QUALITY, 1.1, 0.01, claims.REFUTED)):
            self.assertEqual(self.verdict(claim, mean, p), expected, (claim.text, mean, p))

    def test_validation_is_the_same_only_where_the_seeds_agree_on_it(self):
        self.assertLess(claims.p_of_equivalence([1.0, 1.0002, 0.9999], [1, 1, 1]), 0.05)
        self.assertGreater(claims.p_of_equivalence([1.0, 1.02, 0.98], [1, 1, 1]), 0.05)


@needs_packages
class Experiment(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.program = self.path / "reprise"
        self.program.write_text(textwrap.dedent(PROGRAM).format(python=sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.out = self.path / "out"

    def words(self, *more):
        return ["--quick", "--out", str(self.out), "--program", str(self.program), "--models", "gpt,bert", *more]

    def run_all(self, *more):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(run.main(self.words("--methods", "none uniform dtr pgac:influence", *more)), 0)
        return (self.out / "report.md").read_text()

    def test_an_experiment_is_run_judged_and_taken_up_again(self):
        page = self.run_all()
        for text in ("# PGAC and its baselines", "*supported*", "*refuted*", "*not measured*", "the budget is too small",
                     "pgac:influence", "pictures/gpt-frontier.svg", "0 of 24"):
            self.assertIn(text, page)
        for picture in ("gpt-frontier", "gpt-parts", "gpt-loss", "gpt-pgac-influence-mask"):
            self.assertIn("<svg", (self.out / f"pictures/{picture}.svg").read_text())
        self.check_verdicts()
        self.check_resuming()

    def check_verdicts(self):
        found = logs.read(self.out)
        judged = claims.judge(found, "pgac:influence")
        gpt = {each.claim.column: each for each in judged if each.model == "gpt" and each.claim.baseline in ("uniform", "none")}
        # A quarter of uniform's recomputation, and 1.2 / 1.05 = 1.14 times its throughput.
        self.assertEqual(gpt["recompute_seconds"].verdict, claims.SUPPORTED)
        self.assertAlmostEqual(gpt["recompute_seconds"].measured.mean, 0.25)
        self.assertEqual(gpt["units_a_second"].verdict, claims.SUPPORTED)
        self.assertEqual(gpt["validation_loss"].verdict, claims.SUPPORTED)
        dtr = [each for each in judged if each.claim.baseline == "dtr"]
        self.assertEqual({each.verdict for each in dtr if each.model == "bert"}, {claims.NOT_MEASURED})
        self.assertEqual({each.verdict for each in dtr if each.model == "gpt"}, {claims.REFUTED})

    def check_resuming(self):
        cut, whole = (self.out / f"runs/gpt/none/{seed}/log.jsonl" for seed in (1, 2))
        cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:3]))
        before = whole.stat().st_mtime_ns
        self.run_all()
        self.assertEqual(json.loads(cut.read_text().splitlines()[-1])["kind"], "end")
        self.assertEqual(whole.stat().st_mtime_ns, before)

    def test_a_folder_holds_one_experiment(self):
        self.out.mkdir()
        runs.keep_settings(self.out / "settings.json", plan.settings(run.arguments(self.words("--steps", "9"))), "reprise 1")
        with self.assertRaisesRegex(errors.ExperimentError, "holds another experiment: its version is reprise 1"):
            run.run(self.words("--steps", "9"))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(run.main(self.words("--methods", "none")), 2)
        self.assertRegex(said.getvalue(), r"\Arun.py: .*; give another --out\n\Z")

    def test_what_cannot_work_is_one_clear_error(self):
        for words, text in ((["--models", "llama"], "--models names 'llama'"), (["--seeds", "0"], "--seeds is 0"),
                            (["--methods", "none none"], "names one twice"), (["--text", "/no/such"], "does not exist"),
                            (["--report-only"], "holds no experiment")):
            with self.assertRaisesRegex(errors.ExperimentError, text):
                run.run([*self.words(), *words])
        self.program.unlink()
        with self.assertRaisesRegex(errors.ExperimentError, "build it by scripts/build"):
            run.run(self.words())

    def test_a_run_that_fails_ends_the_experiment_with_the_programs_words(self):
        self.program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('' if '--version' in sys.argv else 'no data')\n")
        with self.assertRaisesRegex(errors.ExperimentError, "ended with 1: no data"):
            run.run(self.words())


if __name__ == "__main__":
    unittest.main()
