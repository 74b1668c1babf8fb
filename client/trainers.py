"""Trainers of Lightning and Hugging Face in a federation, by one line: `client.patch(trainer)`.

After it `trainer.fit(...)` or `trainer.train()` trains for every task of the run: the round's
weights are put into the model, judged on the trainer's own validation data where it has any,
trained, and sent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from ..core.common.errors import DelianError
from .tasks import tasks

T = TypeVar("T")


def patch(trainer: T) -> T:
    """Gives the trainer back, whose training now serves the run's tasks.

    Args:
        trainer: a `lightning.Trainer` or a `transformers.Trainer`.

    Raises:
        DelianError: it is neither.
    """
    modules = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    if modules & {"lightning", "pytorch_lightning"}:
        _patch_lightning(trainer)
    elif "transformers" in modules:
        _patch_transformers(trainer)
    else:
        raise DelianError(
            f"{type(trainer).__name__} is no trainer of Lightning or transformers",
            "for task in client.tasks(): ... task.send(model, examples=n)",
        )
    return trainer


def _patch_lightning(trainer: Any) -> None:
    fit, validate = trainer.fit, trainer.validate

    @functools.wraps(fit)
    def fit_tasks(
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        **given: Any,
    ) -> None:
        data = {"datamodule": datamodule} if datamodule is not None else {}
        judges = val_dataloaders is not None or _judges(datamodule) or _judges(model)
        for task in tasks(model):
            task.load_into(model)
            found: Mapping[str, Any] = {}
            if judges:
                loaders = {} if val_dataloaders is None else {"dataloaders": val_dataloaders}
                found = validate(model, **loaders, **data, verbose=False)[0]
            if task.purpose == "evaluate":
                task.send(examples=_rows(trainer.val_dataloaders), metrics=judged(found))
                continue
            _begin_again(trainer)
            fit(model, train_dataloaders, val_dataloaders, **data, **given)
            rows = _rows(trainer.train_dataloader)
            task.send(model, examples=rows, metrics=judged(found))

    trainer.fit = fit_tasks


def _judges(owner: Any) -> bool:
    """Whether a module of data or a model has validation data of its own."""
    loader = getattr(type(owner), "val_dataloader", None)
    return loader is not None and not loader.__module__.startswith(
        ("lightning.pytorch.core", "pytorch_lightning.core")
    )


def _begin_again(trainer: Any) -> None:
    """Lets a trainer that has reached its last epoch train again."""
    loop = trainer.fit_loop
    loop.epoch_progress.reset()
    loop.epoch_loop.batch_progress.reset()
    for optimization in ("automatic_optimization", "manual_optimization"):
        progress = getattr(getattr(loop.epoch_loop, optimization, None), "optim_progress", None)
        if progress is not None:
            progress.reset()
    trainer.should_stop = False


def _patch_transformers(trainer: Any) -> None:
    train, evaluate = trainer.train, trainer.evaluate
    own_optimizer = trainer.optimizer is not None

    @functools.wraps(train)
    def train_tasks(*arguments: Any, **given: Any) -> Any:
        last = None
        for task in tasks(trainer.model):
            task.load_into(trainer.model)
            judges = trainer.eval_dataset is not None
            found = judged(evaluate()) if judges else {}
            if task.purpose == "evaluate":
                task.send(examples=len(trainer.eval_dataset) if judges else 0, metrics=found)
                continue
            if not own_optimizer:  # its state is of the last round
                trainer.optimizer = trainer.lr_scheduler = None
            last = train(*arguments, **given)
            loss = float(last.training_loss)
            task.send(trainer.model, examples=len(trainer.train_dataset), loss=loss, metrics=found)
        return last

    trainer.train = train_tasks


#: What frameworks call the metrics of a validation.
_PREFIXES = ("val_", "valid_", "validation_", "eval_", "test_", "train_")
#: What `evaluate` of transformers says besides.
_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")


def judged(found: Mapping[str, Any]) -> dict[str, float]:
    """A validation's metrics under their own names: loss and accuracy, not val_loss, eval_loss."""
    made: dict[str, float] = {}
    for name, value in found.items():
        prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
        short = {"acc": "accuracy"}.get(name[len(prefix) :], name[len(prefix) :])
        if short not in _TIMES:
            made[short] = float(value)
    return made


def _rows(loader: Any) -> int:
    """Examples behind a loader of Lightning's, or several. Raises DelianError."""
    loaders: list[Any] = [*loader] if isinstance(loader, list | tuple) else [loader]
    sets: list[Any] = [getattr(one, "dataset", one) for one in loaders]
    try:
        return sum(len(each) for each in sets)
    except TypeError:
        raise DelianError(
            "the training data has no length, so the weight of this site is unknown",
            "write the loop yourself: task.send(model, examples=n)",
        ) from None
