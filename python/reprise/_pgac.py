"""Pgac: layers whose activations have little influence on the gradients are recomputed, the others kept."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from ._layers import described
from ._reprise import PgacRunner


class Pgac(PgacRunner):
    """Gradient-aware proactive activation checkpointing, around a list of modules. It is research (docs/pgac.md).

        pgac = reprise.Pgac(quantile=0.5, budget="400MB")
        for step in range(steps):
            loss_of(pgac.run(model, x)).backward()
            pgac.observe(step)
            optimizer.step()
            optimizer.zero_grad()

    alpha: of the moving average of the influence; 0.9.
    quantile: of the averages, for the threshold; 0.5.
    gamma: factor of the threshold: a number, ("linear", first, last), ("cosine", first, last) or ("learned", first); 1.
    steps: the steps of the training, required unless gamma is a number.
    budget: bytes that forward and backward of the layers may add to those live before; None: the threshold alone decides.
    ranking: which layer is discarded first: "influence", "cost", "influence_times_cost" or "random".
    fill_budget: keep discarded layers again while the budget has room.
    exact_search: take the cheapest of all masks that fit in the budget.
    lossy: LossyOptions: keep layers below the threshold in fewer bits, which changes gradients; None.
    start: averages start at the "first_score" or at "zero".
    follow_pseudocode: follow the proposal's pseudocode where it differs from its formulas.
    hysteresis: how far from the threshold an average must be for a change; 0.
    steps_between_changes: the least number of observed steps between two changes of the mask; 1.
    stride: looks at one run of 64 elements in this many; 1.
    seed: of a learned gamma's draws and of the ranking "random".
    combine: takes a list of averages and returns those of all processes. The garbage collector does not see that it is held:
        a method of an object that has this Pgac keeps both, but for a weakref.

    Gradients are bitwise those of the plain step, except with `lossy`. One thread calls run() and observe() at a time.
    Raises UsageError, with the option, for a value out of range.
    """

    def run(self, layers: Iterable[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> Any:
        """Runs the layers, a torch.nn.Sequential or a list, one after another on x; without grad mode simply so.

        It may be called any number of times between two observe(). Raises UsageError for no layers, or another number
        than before; and BudgetError, with the least bytes that suffice, if no mask fits.
        """
        return self.run_described(described(layers), x)
