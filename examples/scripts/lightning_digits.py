"""A Lightning trainer as a site, by one line.

delian simulate lightning_digits.py --devices 4 --set data.process_each=true
"""

import delian.client as client
import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, LABELS = map(torch.tensor, load_digits(return_X_y=True))


class Digits(lightning.LightningModule):
    """Dense layers and cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    site = client.site()
    rows = TensorDataset(ROWS[site.client :: 4].float() / 16, LABELS[site.client :: 4])
    judges, learnt = torch.utils.data.random_split(rows, [0.25, 0.75])
    trainer = client.patch(lightning.Trainer(max_epochs=3, logger=False))
    trainer.fit(Digits(), DataLoader(learnt, 16, shuffle=True), DataLoader(judges, 64))
