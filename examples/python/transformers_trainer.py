"""Transformers' Trainer within a byte budget, at 70 % of its plain peak; the losses are the plain Trainer's."""

import gc
import tempfile

import torch
import transformers

import reprise
from reprise.integrations.transformers import MemoryBudgetCallback

transformers.logging.set_verbosity_error()


def losses(callbacks: "list[transformers.TrainerCallback]") -> "list[float]":
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=4, n_embd=64, n_head=2, vocab_size=64, n_positions=48, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (16, 48))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
        trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    with reprise.PeakScope() as plain:
        expected = losses([])
    gc.collect()  # a Trainer is part of cycles of references
    callback = MemoryBudgetCallback(reprise.live_bytes() + plain.peak_above_start * 7 // 10)
    same = losses([callback]) == expected
    report = callback.budget.report()
    print(f"plain peak {plain.peak / 1e6:.1f} MB, peak within the budget {report.peak / 1e6:.1f} MB, "
          f"{report.replayed} operators replayed, {'same' if same else 'other'} losses")


if __name__ == "__main__":
    main()
