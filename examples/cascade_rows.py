"""Scikit-learn's digits in two files: rows to train on, and rows that no model has seen.

    python examples/cascade_rows.py

It writes train.npz and held.npz here, for examples/cascade.toml.
"""

from __future__ import annotations

import delian as dl
import numpy as np

TRAINED = 997


def main() -> None:
    found = dl.learn.datasets.digits()
    order = np.random.default_rng(0).permutation(len(found.y))
    for name, at in (("train", order[:TRAINED]), ("held", order[TRAINED:])):
        np.savez(f"{name}.npz", x=found.x[at].astype(np.float32), y=found.y[at])


if __name__ == "__main__":
    main()
