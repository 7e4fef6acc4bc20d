"""Pipelines of Python modules: two stages on two cores beside one, as benchmarks/pipeline.cpp measures those of C++."""

import time

import torch

import reprise

WORKERS, BLOCKS_OF_STAGE, WIDTH, ROWS = 2, 3, 512, 256


def pipeline(stages, chunks, schedule):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
        for _ in range(WORKERS * BLOCKS_OF_STAGE)])
    x = torch.randn(chunks * ROWS, WIDTH)
    pipe = reprise.Pipeline(model, balance=[len(model) // stages] * stages, chunks=chunks, checkpoint="never",
                            schedule=schedule, threads=1)

    def step():
        begin = time.perf_counter()
        pipe.step(x, x, torch.nn.functional.mse_loss)
        seconds = time.perf_counter() - begin
        model.zero_grad()
        return seconds

    step()
    return step


def efficiency(figures, quick):
    """Throughput of two workers by that of one, by n * m / (m + n - 1)."""
    for m in (8, 32):
        one, two, gpipe = pipeline(1, m, "1f1b"), pipeline(WORKERS, m, "1f1b"), pipeline(WORKERS, m, "gpipe")
        formula = WORKERS * m / (m + WORKERS - 1)
        shares = {"1f1b": [], "gpipe": []}
        for _ in range(2 if quick else 11):
            alone = one()
            shares["1f1b"].append(alone / two() / formula)
            shares["gpipe"].append(alone / gpipe() / formula)
        for schedule, values in shares.items():
            figures.add("python_pipeline_efficiency", f"throughput / formula, {schedule}, m={m}", values, "x")


BENCHES = {"python_pipeline_efficiency": efficiency}
