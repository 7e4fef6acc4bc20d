"""Lightning's Trainer within a byte budget, at 70 % of its plain peak; the losses are the plain Trainer's."""

import gc
import logging
import warnings

import lightning.pytorch as pl
import torch

import reprise
from reprise.integrations.lightning import MemoryBudgetCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(10)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(128, 1))
        self.losses: "list[float]" = []

    def training_step(self, batch: "list[torch.Tensor]", batch_idx: int) -> torch.Tensor:
        (x,) = batch
        loss: torch.Tensor = (self.layers(x) - x.mean(1, keepdim=True)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def losses(callbacks: "list[pl.Callback]") -> "list[float]":
    torch.manual_seed(1)
    module = Regression()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(2048, 128)), batch_size=512)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=callbacks, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, data)
    return module.losses


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
