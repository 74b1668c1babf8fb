"""Training scripts of your own at a site: `import delian.client as client`.

    for task in client.tasks():
        model.load_state_dict(task.state_dict())
        loss = train(model, rows, lr=task.settings["lr"])
        task.send(model, examples=len(rows), loss=loss, metrics={"accuracy": accuracy})

A device's agent (`delian device run --script NAME=COMMAND`) or the simulator (`delian simulate
--script FILE`) starts the script, gives it the round's weights and takes what it sends: it clips,
rounds and masks the change as it does with what Delian itself has trained. Importing this needs
NumPy alone.
"""

from __future__ import annotations

from .bags import Bag, bag_weights
from .tasks import NoHostError, Site, Task, site, tasks
from .trainers import patch
from .weights import WeightsError

__all__ = [
    "Bag",
    "NoHostError",
    "Site",
    "Task",
    "WeightsError",
    "bag_weights",
    "patch",
    "site",
    "tasks",
]
