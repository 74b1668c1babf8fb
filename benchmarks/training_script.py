"""A PyTorch script of one epoch on made-up images: what `training_scripts.py` times.

Its argument is the model: mlp or cnn. Settings: samples, batch, lr.
"""

from __future__ import annotations

import sys

import delian.client as client
import numpy as np
import torch
from torch import nn

TEST_SAMPLES = 500
#: The client whose draws are the test data.
TEST_CLIENT = 10**6

Data = tuple[torch.Tensor, torch.Tensor]


def network(name: str) -> nn.Sequential:
    """The models of the paper on federated averaging (McMahan et al. 2017): 2NN, or the CNN."""
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, 10),
    )


def prototypes() -> np.ndarray:
    """The mean image of each of ten classes, [10, 28, 28], smoothed noise of variance 1."""
    found = np.random.default_rng(0).normal(0, 1, (10, 28, 28))
    for axis in (1, 2):
        found = np.apply_along_axis(np.convolve, axis, found, np.full(5, 0.2), "same")
    return (found / found.std()).astype(np.float32)


def rows_of(number: int, samples: int) -> Data:
    """A client's images, f32 [samples, 1, 28, 28], and their labels, i64 [samples]."""
    drawn = np.random.default_rng(1000 + number)
    labels = drawn.integers(0, 10, samples)
    images = 0.5 * MEANS[labels] + 0.7 * drawn.normal(0, 1, (samples, 28, 28))
    return torch.from_numpy(images.astype(np.float32))[:, None], torch.from_numpy(labels)


def train(net: nn.Module, data: Data, batch: int, rate: float) -> float:
    """One epoch of SGD in order; the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    loss = torch.zeros(())
    for x, y in zip(*(part.split(batch) for part in data), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Serves the run's tasks. Evaluation is of the test data, in whichever client's name."""
    net = network(sys.argv[1])
    kept: dict[int, Data] = {}
    for task in client.tasks(net):
        given = task.settings
        task.load_into(net)
        if task.purpose == "evaluate":
            x, y = rows_of(TEST_CLIENT, TEST_SAMPLES)
            with torch.no_grad():
                right = (net(x).argmax(1) == y).float().mean()
            task.send(examples=TEST_SAMPLES, metrics={"accuracy": right})
            continue
        if task.client not in kept:
            kept[task.client] = rows_of(task.client, int(given["samples"]))
        loss = train(net, kept[task.client], int(given["batch"]), float(given["lr"]))
        task.send(net, examples=int(given["samples"]), loss=loss)


if __name__ == "__main__":
    MEANS = prototypes()
    main()
