"""`dl.simulate`: a federation in one call, and its result for notebooks and scripts."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_data, refuse_file
from ...core.common.heap import share_heap
from ...core.compiler.backends import Backend
from ...core.learning.data.tokens.token_facts import facts_of
from ...core.learning.predictor import Predictor, columns_of
from ..integrations.trackers import recorded, trackers
from ..report.measures import measure_of
from ..report.report import build_report, make_folder, write_report
from ..report.svg import count
from ..scenario import own_data
from ..scenario.datasets import federated, load_data, own_choice, scenario_for, with_data
from ..scenario.given_models import kind_of
from ..scenario.scenario import Scenario
from ..scenario.scenario_file import (
    devices_of,
    from_tables,
    load,
    override,
    with_algorithm,
    with_source,
)
from .progress import Progress
from .result import Event, SimulationResult
from .simulation_run import Simulation

if TYPE_CHECKING:
    from ...core.learning import Algorithm

#: Models of the catalogue that a name stands for.
_NAMED = ("mlp", "cnn", "omniglot", "lstm", "transformer")


class Run:
    """What a simulation gives.

    `rounds` and `devices` are data frames where pandas is installed, else lists of dicts.
    """

    def __init__(self, simulation: Simulation, result: SimulationResult) -> None:
        self._simulation = simulation
        self.result = result
        """Everything, as plain values."""
        self._report = build_report(result)

    @property
    def summary(self) -> dict[str, Any]:
        """The headline figures, as `summary` of report.json (docs/report.md)."""
        found: dict[str, Any] = self._report["summary"]
        return found

    @property
    def warnings(self) -> list[str]:
        """What should not be overlooked."""
        found: list[str] = self.summary["warnings"]
        return found

    @property
    def rounds(self) -> Any:
        """A row a round: accuracies, losses, bytes, clients that reported or dropped out."""
        return _frame([_flat(row) for row in self._report["rounds"]])

    @property
    def devices(self) -> Any:
        """A row a client: examples, accuracy with the shared and the personalised model."""
        return _frame(self._report["devices"])

    @property
    def accuracy(self) -> float | None:
        """The shared model's, a mean over clients; the mean squared error of a regression."""
        found: float | None = self.summary.get("global_accuracy")
        return found

    @property
    def personal_accuracy(self) -> float | None:
        """The personalised models', likewise."""
        found: float | None = self.summary.get("personalised_accuracy")
        return found

    @property
    def weights(self) -> dict[str, Any]:
        """The shared state's arrays at the end by name, f32; of a script they are its model's."""
        assert self.result.bundle is not None
        bundle = self.result.bundle
        views = self._simulation.stage.runtime.views(bundle.weights, bundle.manifest.state)
        return {leaf.name: view for leaf, view in zip(bundle.manifest.state, views, strict=True)}

    @property
    def model(self) -> Predictor:
        """The shared model at the end: `run.model.predict(x)`."""
        assert self.result.bundle is not None
        return self._predictor(self._simulation.stage.runtime.model_of(self.result.bundle.weights))

    def personal_model(self, device: int | str) -> Predictor:
        """A client's personalised model, made from the shared one on its training split.

        device: its number or its name. Raises DelianError for a device that there is not.
        """
        assert self.result.bundle is not None
        state = self.result.bundle.weights
        return self._predictor(self._simulation.personalised(self._number(device), state))

    def _predictor(self, model: Any) -> Predictor:
        assert self.result.bundle is not None
        card = self.result.data
        names = () if card["numbers"] else tuple(card["label_names"])
        names = () if names == tuple(str(k) for k in range(len(names))) else names
        stage = self._simulation.stage
        known = columns_of(card), stage.backend, facts_of(card)
        return Predictor(self.result.bundle, model, names, *known)

    def _number(self, device: int | str) -> int:
        names = self._simulation.stage.data.names
        if isinstance(device, str) and device in names:
            return names.index(device)
        if isinstance(device, int) and 0 <= device < len(names):
            return device
        raise DelianError(
            f"there is no device {device!r} among {len(names)}",
            f"give a number from 0 to {len(names) - 1}, or a name such as {names[0]!r}",
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes model.bundle, report.html and report.json; gives the page's path.

        Raises DelianError where the folder has a report already, or cannot be written.
        """
        from ..report.report import claim_folder, save_bundle

        place = Path(folder)
        make_folder(place.parent)
        claim_folder(place)
        if self.result.bundle is not None:
            save_bundle(self.result.bundle, place / "model.bundle")
        return write_report(self._report, place)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes the report as one HTML page, which replaces a file of that name; gives its path.

        Raises DelianError where it cannot be written.
        """
        from ..report.report import write_page

        file = Path(path)
        if file.is_dir():
            raise DelianError(f"{file} is a folder", 'name a file: run.report("report.html")')
        make_folder(file.parent)
        write_page(self._report, file)
        return file

    def plot(self, ax: Any = None) -> Any:
        """Accuracy (or the error) by round, drawn by matplotlib; gives the axes.

        Raises DelianError where matplotlib is not installed.
        """
        try:
            pyplot = importlib.import_module("matplotlib.pyplot")
        except ImportError:
            raise DelianError(
                "plot needs matplotlib, which is not installed",
                "pip install matplotlib, or run.save(folder), whose report has the curves",
            ) from None
        axes = pyplot.subplots()[1] if ax is None else ax
        rows = [r for r in self.result.rounds if r.global_accuracy is not None]
        measure = measure_of(self.result.scenario.to_json())
        rounds = [r.round for r in rows]
        axes.plot(rounds, [r.global_accuracy for r in rows], label="shared model")
        axes.plot(rounds, [r.personalised_accuracy for r in rows], label="personalised models")
        axes.set_xlabel("round")
        axes.set_ylabel(measure.name)
        axes.legend()
        return axes

    def __repr__(self) -> str:
        measure, summary = measure_of(self.result.scenario.to_json()), self.summary
        size = f"{count(summary['rounds'], 'round')}, {count(summary['devices'], 'device')}"
        return (
            f"<{self.result.scenario.name}, {summary['algorithm']}: {size};"
            f" {measure.name} {measure.show(self.accuracy)} shared,"
            f" {measure.show(self.personal_accuracy)} personalised>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        measure, summary = measure_of(self.result.scenario.to_json()), self.summary
        cells = {
            "algorithm": summary["algorithm"],
            "rounds": summary["rounds"],
            "devices": summary["devices"],
            f"{measure.name}, shared": measure.show(self.accuracy),
            f"{measure.name}, personalised": measure.show(self.personal_accuracy),
        }
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
            for name, value in cells.items()
        )
        warnings = "".join(f"<p>Warning: {escape(each)}</p>" for each in self.warnings)
        caption = escape(self.result.scenario.name)
        return f"<table><caption>{caption}</caption>{rows}</table>{warnings}"


def simulate(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | Scenario | None = None,
    *,
    data: Any = None,
    target: str = "",
    model: Any = None,
    algorithm: str | Algorithm | None = None,
    rounds: int | None = None,
    devices: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    threads: int | None = None,
    backend: Backend = "native",
    progress: bool | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    mlflow: str | os.PathLike[str] | None = None,
    wandb: str | None = None,
    baselines: bool = False,
) -> Run:
    """Runs a federation on this machine, in virtual time, with the protocol of real fleets.

        run = dl.simulate("digits")
        run = dl.simulate(data=frame, target="price")
        run = dl.simulate(data=(x, y), model=net, algorithm="scaffold", rounds=20)

    Args:
        scenario: a name, a file, its tables as a dict, or a Scenario. Absent: `digits`, or one that
            is fitted to the data.
        data: a path (a table, an .npz, a folder of images or texts), a data frame or a dict of
            columns, a pair (x [n, ...], y [n]), or FederatedData.
        target: of a table, the column that is learnt.
        model: a torch.nn.Module or a class of them, what dl.from_onnx gives, a tree of arrays that
            is called as model(x), a function init(key, shape, classes), or a name: mlp, cnn.
        algorithm: a name, or an object (`dl.learn.Algorithm`).
        rounds: how many rounds are run (the key `rounds`).
        devices: how many devices there are (`fleet.devices`).
        learning_rate: of the local training (`algorithm.learning_rate`).
        seed: of everything that is drawn (`seed`).
        settings: other keys, {"fleet.dropout": 0.1} or ["fleet.dropout=0.1"].
        threads: how many devices train at once; the result is the same for any number.
        backend: as of `delian simulate --backend`.
        progress: whether a view of the run is drawn; absent: in a terminal and in Jupyter.
        tensorboard: a folder for event files of TensorBoard.
        mlflow: a folder or a URI; the run is recorded in MLflow.
        wandb: "offline": the run is recorded for Weights & Biases, in ./wandb.
        baselines: whether the run is compared with devices that train alone, and with all rows in
            one place; the report has both.

    Raises:
        DelianError: something does not fit, with what to do about it.
    """
    keys = _settings(settings)
    if isinstance(model, str | os.PathLike):
        if model not in _NAMED:
            refuse_file(model, "model")
            raise DelianError(f"there is no model `{model}`", f"one of {', '.join(_NAMED)}")
        keys.insert(0, f"model.name={model}")
        model = None
    short = {
        "rounds": rounds,
        "fleet.devices": devices,
        "algorithm.learning_rate": learning_rate,
        "seed": seed,
    }
    keys += [f"{key}={value}" for key, value in short.items() if value is not None]
    said = [*([f"data.target={json.dumps(target)}"] if target else []), *keys]
    chosen, held = _chosen(scenario, data, said)
    if isinstance(algorithm, str):
        chosen, algorithm = with_algorithm(chosen, algorithm), None
    if model is not None:
        keys = ["model.name=given", f'model.kind="{kind_of(model)}"', *keys]
    chosen = override(chosen, keys)
    recording = trackers(tensorboard, mlflow, wandb)
    share_heap()
    began = time.perf_counter()
    loaded = held(chosen)
    with _view(chosen, progress) as view, recorded(recording, view) as on_event:
        simulation = Simulation(
            chosen,
            algorithm,
            loaded,
            threads=threads,
            backend=backend,
            on_event=on_event,
            stop=lambda: False,
            began=began,
            resume=None,
            forget=True,
            model=model,
            compares=baselines,
        )
        result = simulation.run()
        if recording is not None:
            recording.close(result)
        return Run(simulation, result)


def _settings(given: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Settings as `--set` has them."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Mapping):
        return list(given)
    found = []
    for key, value in given.items():
        if isinstance(value, Mapping):  # a table: {"data.settings": {"lr": 0.1}}
            found += _settings({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            found.append(f"{key}={json.dumps(value)}")
    return found


def _chosen(scenario: Any, data: Any, settings: Sequence[str]) -> tuple[Scenario, Any]:
    """The scenario, and a function that gives its data once the scenario is final."""
    from ...core.learning import data as datasets

    named = _scenario(scenario)
    if data is None:
        return named or load(), load_data
    if isinstance(data, datasets.FederatedData):
        return named or load(), lambda final: data
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        chosen = (
            scenario_for(None, path, settings)
            if named is None
            else with_data(named, path, own_choice(settings))
        )
        return chosen, lambda final: load_data(final, path)
    rows = _rows(data, own_choice(settings), devices_of(settings))
    kind = "npz"
    if isinstance(rows, datasets.TableRows):
        kind = "table" if rows.series is None else "series"
    if named is None:
        chosen = own_data.fitted_to(rows, kind, "data", devices_of(settings))
    else:
        chosen = with_source(named, kind, own_data.keys_of(rows, kind))
    return chosen, lambda final: federated(final, rows)


def _scenario(given: Any) -> Scenario | None:
    if given is None or isinstance(given, Scenario):
        return given
    if isinstance(given, Mapping):
        return from_tables(given).placed_in(Path())
    return load(given)


def _rows(data: Any, choice: own_data.OwnChoice, devices: int) -> Any:
    """Labelled rows of a pair (x, y), a data frame or a dict of columns."""
    from ...core.learning import data as datasets

    if isinstance(data, tuple) and len(data) == 2:
        return datasets.labelled_pair(np.asarray(data[0]), np.asarray(data[1]))
    if isinstance(data, Mapping) or hasattr(data, "columns"):
        columns = datasets.frame_columns(data)
        if choice.window:
            return own_data.own_series(columns, "the data", choice, devices)
        return datasets.table_of(columns, "the data", choice.columns_chosen())
    refuse_data(data)
    raise DelianError(
        f"data is {type(data).__name__}",
        "give a path, a data frame, a dict of columns, a pair (x, y), or FederatedData",
    )


class _Quiet:
    """A view that shows nothing."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, event: Event) -> None: ...


def _view(scenario: Scenario, wanted: bool | None) -> Progress | _Quiet:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if wanted is None:
        wanted = console.is_terminal or console.is_jupyter
    return Progress(console, scenario) if wanted else _Quiet()


def _frame(rows: list[dict[str, Any]]) -> Any:
    """A data frame where pandas is installed, else the rows."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round's record without tables in it: `bytes.device_edge_up`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat
