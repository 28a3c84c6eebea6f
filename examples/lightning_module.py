"""A LightningModule: the penalty is a line of its training step, the monitor a callback."""

import tempfile

import gapscope as gs

try:
    import lightning.pytorch as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from gapscope.integrations.lightning import MonitorCallback, PenaltyCallback
except ImportError as error:
    raise SystemExit(f"skipped: {error}") from None


class _Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 2))
        self.penalty = gs.GradientSimilarityPenalty(0.001)

    def training_step(self, batch, index):
        outputs, value = self.penalty.forward_with_penalty(self.model, batch[0])
        return nn.functional.cross_entropy(outputs, batch[1]) + value

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


x = torch.randn(96, 8)
data = TensorDataset(x, (x[:, 0] > 0).long())
monitor, module = gs.Monitor(data, ["ntk_trace", "accuracy"]), _Classifier()
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "accelerator": "cpu",
}
callbacks = [MonitorCallback(monitor, module="model"), PenaltyCallback(module.penalty)]
trainer = pl.Trainer(
    max_epochs=2, callbacks=callbacks, default_root_dir=tempfile.mkdtemp(), **quiet
)
trainer.fit(module, DataLoader(data, batch_size=32, shuffle=True))
print(monitor.to_pandas(), gs.measure(module.model, data), sep="\n")
monitor.plot()
