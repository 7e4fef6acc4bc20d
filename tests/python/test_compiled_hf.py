"""A model of Transformers that trains compiled within bytes, bitwise as without."""

import pytest
import torch

import reprise
from reprise.compiled import _plan

transformers = pytest.importorskip("transformers")


def test_gpt2_trains_compiled_at_a_share_of_its_activations(monkeypatch):
    monkeypatch.setattr(_plan, "_SECONDS_FOR_LEAST", 0.1)
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=64, vocab_size=96, bos_token_id=0,
                                     eos_token_id=0, use_cache=False)
    words = torch.arange(4 * 64).reshape(4, 64) * 7 % 96
    found, peaks = [], []
    for budget in (None, "80%"):
        torch._dynamo.reset()
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters())
        call = torch.compile(model, backend="aot_eager", dynamic=False) if budget is None else \
            reprise.compile(model, memory_budget=budget, backend="aot_eager")
        losses = []
        for _ in range(2):
            with reprise.PeakScope() as scope:
                loss = call(input_ids=words, labels=words).loss
                loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        peaks.append(scope.peak_above_start)
        found.append((losses, [each.detach().clone() for each in model.parameters()]))
    (losses, parameters), (others, changed) = found
    assert losses == others and all(map(torch.equal, parameters, changed))
    assert peaks[1] <= 0.8 * peaks[0] and call.memory_budget.report()[0].recompute_seconds > 0
