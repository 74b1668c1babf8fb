"""A PyTorch loop as a site: `delian simulate torch_digits.py --devices 10`."""

import delian.client as client
import torch
from sklearn.datasets import load_digits
from torch import nn

ROWS, LABELS = map(torch.tensor, load_digits(return_X_y=True))
NET = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(x: torch.Tensor, y: torch.Tensor, rate: float) -> float:
    """Three passes of SGD; the last loss."""
    optimizer = torch.optim.SGD(NET.parameters(), lr=rate)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(NET(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    return loss.item()


def main() -> None:
    """Serves the run's tasks."""
    for task in client.tasks(NET):
        torch.manual_seed(task.seed)
        x = ROWS[task.client :: task.clients or 1].float() / 16
        y = LABELS[task.client :: task.clients or 1]
        judges = torch.arange(len(x)) % 4 == 0
        task.load_into(NET)
        with torch.no_grad():
            right = (NET(x[judges]).argmax(1) == y[judges]).float().mean()
        loss = train(x[~judges], y[~judges], rate=task.settings.get("lr", 0.1))
        task.send(NET, examples=int(sum(~judges)), loss=loss, metrics={"accuracy": right})


if __name__ == "__main__":
    main()
