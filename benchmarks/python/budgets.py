"""Budgets on networks of transformers: beside Hugging Face's own gradient checkpointing, and without pressure."""

import statistics

import reprise
from models import MODELS, Step, same
from timing import race


def peak_of(step):
    with reprise.PeakScope() as scope:
        step()
    return scope.peak_above_start


def under(budget, step):
    def run():
        with budget.step():
            return step()
    return run


def settle(budget, step):
    """Steps until the budget has a plan, or none is being made."""
    for _ in range(6):
        under(budget, step)()
        budget.wait_for_plan(30)


def ratios(seconds, name, to="plain"):
    return [mine / other for mine, other in zip(seconds[name], seconds[to])]


def budget(figures, quick):
    """×plain at the peak of gradient_checkpointing_enable(): our overhead is at most half of the peer's."""
    for name in MODELS:
        plain, theirs = Step(name), Step(name)
        theirs.model.gradient_checkpointing_enable()
        for step in (plain, theirs):
            step()
            step()
        peer_peak, plain_peak = peak_of(theirs), peak_of(plain)
        limit = reprise.MemoryBudget(reprise.live_bytes() + peer_peak)
        expected = plain.gradients()
        roomy = reprise.MemoryBudget(reprise.live_bytes() + peer_peak + sum(g.nbytes for g in expected if g is not None))
        with roomy.step():
            found = plain.gradients()
        if not same(found, expected):
            raise SystemExit(f"python_budget: {name}: gradients under a budget are not those of the plain step")
        del expected, found
        half = reprise.MemoryBudget(reprise.live_bytes() + plain_peak // 2)
        settle(limit, plain)
        settle(half, plain)
        ours_peak = peak_of(under(limit, plain))
        seconds = race({"plain": plain, "peer": theirs, "ours": under(limit, plain), "half": under(half, plain)},
                       5 if quick else 30)
        ours, peer = ratios(seconds, "ours"), ratios(seconds, "peer")
        mine, other = statistics.median(ours), statistics.median(peer)
        figures.add("python_budget", f"{name}: time", ours, "x plain", other)
        figures.add("python_budget", f"{name}: overhead", [value - 1 for value in ours], "x plain - 1", other - 1, 0.5,
                    (mine - 1) / (other - 1))
        plan = limit.plan()
        if plan is not None:
            figures.add("python_budget", f"{name}: planned time above its lower bound",
                        [(plan.slowdown - plan.bound) / (plan.bound - 1)], "share of the overhead")
        figures.add("python_budget", f"{name}: peak", [ours_peak / 1e6], "MB", peer_peak / 1e6, 1.0)
        figures.add("python_budget", f"{name}: plain peak", [plain_peak / 1e6], "MB")
        figures.add("python_budget", f"{name}: time at half of that", ratios(seconds, "half"), "x plain")


def no_pressure(figures, quick):
    """×plain under a budget that never binds."""
    for name in MODELS:
        step = Step(name)
        boundless = reprise.MemoryBudget("64GiB")
        ours = under(boundless, step)
        step()
        ours()
        ours()
        seconds = race({"plain": step, "ours": ours}, 6 if quick else 60)
        figures.add("python_no_pressure", name, ratios(seconds, "ours"), "x plain", bar=1.03)


BENCHES = {"python_budget": budget, "python_no_pressure": no_pressure}
