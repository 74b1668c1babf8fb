"""XGBoost by bagging as sites: each round each site adds trees, and all have all trees.

delian simulate xgboost_digits.py --devices 5 --rounds 4 --set privacy.clip=1e6 \
    --set data.equal_weights=true
"""

import delian.client as client
import numpy as np
import xgboost as xgb
from sklearn.datasets import load_digits

ROWS, LABELS = load_digits(return_X_y=True)
SETTINGS = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3, "eta": 0.3}


def scores(boosters: list[bytes], x: np.ndarray) -> np.ndarray:
    """The sum of what all boosters say of rows, [n, 10]."""
    total = np.zeros((len(x), 10))
    for content in boosters:
        each = xgb.Booster(model_file=bytearray(content))
        total += each.predict(xgb.DMatrix(x), output_margin=True)
    return total


def main() -> None:
    """Serves the run's tasks: a site trains one round of trees on what the bag leaves to learn."""
    for task in client.tasks(client.bag_weights(rounds=4, clients=5, size=40_000)):
        x, y = ROWS[task.client :: 5], LABELS[task.client :: 5]
        judges, bag = np.arange(len(x)) % 4 == 0, client.Bag(task)
        judged = {"accuracy": float((scores([*bag], x[judges]).argmax(1) == y[judges]).mean())}
        if task.purpose == "evaluate":
            task.send(examples=1, metrics=judged)
            continue
        rows = xgb.DMatrix(x[~judges], label=y[~judges], base_margin=scores([*bag], x[~judges]))
        trees = xgb.train(SETTINGS, rows, num_boost_round=1)
        task.send(bag.put(bytes(trees.save_raw("ubj"))), examples=1, metrics=judged)


if __name__ == "__main__":
    main()
