"""Lightning's Trainer with validation, checkpoints and loader workers."""

PROGRAM = {
    "needs": ["lightning"],
    "jitter": {"stderr": True, "files": ["lightning_logs/*", "checkpoints/*"]},
}

import lightning
import probe
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def training_step(self, batch, number):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss)
        probe.tick()
        print(f"batch {number} {loss.item():.2f}")
        return loss

    def validation_step(self, batch, number):
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.layers(inputs), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def main():
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(32, 16), torch.randint(0, 4, (32,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint("checkpoints", every_n_epochs=1)],
    )
    trainer.fit(Classifier(), loader, loader)
    print(trainer.state.status, trainer.global_step)
    probe.done()


if __name__ == "__main__":
    main()
