"""A scikit-learn classifier as a site: `delian simulate sklearn_digits.py --devices 10`."""

import delian.client as client
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

ROWS, LABELS = load_digits(return_X_y=True)


def main() -> None:
    """Serves the run's tasks: five passes of logistic regression by SGD a round."""
    model = SGDClassifier(loss="log_loss", alpha=1e-3, random_state=1)
    model.partial_fit(ROWS[:1], LABELS[:1], classes=np.arange(10))  # gives it its arrays
    first = {"coef_": np.zeros((10, 64)), "intercept_": np.zeros(10)}
    for task in client.tasks(first):
        x = ROWS[task.client :: task.clients or 1] / 16
        y = LABELS[task.client :: task.clients or 1]
        judges = np.arange(len(x)) % 4 == 0
        task.load_into(model)
        judged = {"accuracy": model.score(x[judges], y[judges])}
        if task.purpose == "evaluate":
            task.send(examples=len(x[judges]), metrics=judged)
            continue
        model.t_ = 1.0  # the step size falls from the same value in every round
        for _ in range(5):
            model.partial_fit(x[~judges], y[~judges])
        task.send(model, examples=len(x[~judges]), metrics=judged)


if __name__ == "__main__":
    main()
