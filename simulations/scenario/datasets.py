"""From a scenario's [data] table to the federation's data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_file
from ...core.learning import data
from ...core.learning.data.tabular.fitted_features import Fit
from ..statistics.prepared_tables import prepared
from . import data_settings, own_data, settings_table
from .own_data import read_own_images, read_own_series, read_own_table, table_choice
from .partition_settings import DealtData
from .scenario import Scenario
from .scenario_file import bundled, devices_of, load, setting_of, with_fleet, with_source
from .stored_devices import stored_federation
from .token_data import token_data

#: Kinds of a user's own data; the others say by themselves what their files are.
_OWN = ("npz", "table", "series", "images", "stored")


def scenario_for(
    source: str | None,
    path: Path | None,
    settings: Sequence[str] = (),
) -> Scenario:
    """The scenario of a command: the named one on the data, or one that is fitted to the data.

    settings: keys that say what is read of the data, and how many devices a fitted one has.
    """
    choice, devices = own_choice(settings), devices_of(settings)
    if source is None and path is not None:
        return own_data.fitted(path, choice, devices).placed_in(Path())
    return with_data(load() if source is None else load(source), path, choice)


def own_choice(settings: Sequence[str]) -> own_data.OwnChoice:
    """What settings say of a user's data before a scenario is fitted to them."""
    kept: dict[str, Any] = {}
    for each in dataclasses.fields(own_data.OwnChoice):
        value = setting_of(settings, f"data.{each.name}")
        whole = isinstance(each.default, int)
        # A value that makes no sense is refused where it is set.
        if value and (not whole or (type(value) is int and value > 0)):
            kept[each.name] = value if whole else str(value)
    return own_data.OwnChoice(**kept)


def named_data(scenario: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """(scenario, data file) of a command: data of a user's own may stand in the scenario's place.

    A bundled scenario's name is always the scenario. Raises DelianError for two files of data.
    """
    if not scenario or scenario in bundled():
        return scenario, file
    path = Path(scenario)
    if not path.exists():
        return scenario, file
    if own_data.kind_of(path) is None:
        if path.is_dir() and not any(path.glob("*.toml")):
            raise DelianError(
                f"{path} is a folder without data of a known kind",
                f"{own_data.KNOWN}; of a scenario name the .toml file",
            )
        return scenario, file
    if file is not None:
        raise DelianError(f"two files of data: {scenario} and {file}", "give one of them")
    return None, path


def with_data(
    scenario: Scenario, path: Path | None, choice: own_data.OwnChoice | None = None
) -> Scenario:
    """The scenario as `--data` changes it: one with other data is put on the user's own.

    Data with the device of each example keep their devices.
    """
    if path is None:
        return scenario
    if scenario.data.source == "script":
        own = scenario.data.model_copy(update={"path": str(path.absolute())})
        return scenario.model_copy(update={"data": own})
    published = hasattr(scenario.data, "path") and scenario.data.source not in _OWN
    ids = scenario.data.source == "text" and path.suffix == ".npy"
    if not ids:
        refuse_file(path, "data", archives=not published)
    if published:
        return scenario
    kind = own_data.kind_of(path)
    if kind == "text":
        raise DelianError(
            f"{path} is a text, and the scenario {scenario.name} learns rows",
            f"leave the scenario out: delian simulate --data {path}",
        )
    if kind is None:
        kind = scenario.data.source if scenario.data.source in _OWN else "npz"
    choice = choice or own_data.OwnChoice()
    kind = "series" if kind == "table" and choice.window else kind
    if kind == scenario.data.source and not (kind == "table" and choice.target):
        return scenario
    if kind in ("images", "stored"):
        return with_source(scenario, kind, {})
    rows = own_data.read_own(path, kind, choice)
    return with_source(scenario, kind, own_data.keys_of(rows, kind))


def load_data(scenario: Scenario, path: Path | None = None) -> data.FederatedData:
    """What every device holds. `path` stands in for the scenario's own `data.path`.

    Raises DelianError for a file that is missing or does not hold what it should, and for counts
    that the data cannot meet.
    """
    return _checked(scenario, _load(scenario, path or scenario.data_file))


def federated(scenario: Scenario, rows: data.Labelled | data.TableRows) -> data.FederatedData:
    """What every device holds of rows that the caller has. Raises DelianError as `load_data`."""
    return _checked(scenario, _dealt(scenario, rows))


def _checked(scenario: Scenario, loaded: data.FederatedData) -> data.FederatedData:
    _check_counts(on_data(scenario, loaded), loaded)
    if scenario.regression and scenario.evaluation.federated:
        _check_errors(loaded)
    return loaded


def on_data(scenario: Scenario, loaded: data.FederatedData) -> Scenario:
    """The scenario with as many devices as the data has.

    The numbers of edges and of a round's devices fall to that where they are not set. Raises
    DelianError where the scenario makes no sense with so few.
    """
    return with_fleet(scenario, len(loaded.devices), len(loaded.training))


def _load(scenario: Scenario, path: Path | None) -> data.FederatedData:
    source, fleet = scenario.data, scenario.fleet
    if isinstance(source, data_settings.ScriptData):
        assert fleet.devices is not None, "the scenario checked it"
        return unseen(fleet.devices, _need(scenario, path).name)
    if isinstance(source, DealtData):
        return _dealt(scenario, _labelled(scenario, path))
    if isinstance(source, data_settings.StoredData):
        classes = getattr(scenario.model, "classes", None)
        return stored_federation(_need(scenario, path), source, scenario.seed, classes)
    if isinstance(
        source, data_settings.LogisticData | data_settings.HarData | data_settings.FemnistData
    ):
        return data.federate(
            _labelled(scenario, path),
            deal=data.Deal(partition="natural", min_examples=getattr(source, "min_examples", 2)),
            devices=None if isinstance(source, data_settings.LogisticData) else fleet.devices,
            query_fraction=source.query_fraction,
            held_out_devices=source.held_out_devices,
            seed=scenario.seed,
            classes=getattr(scenario.model, "classes", None),
        )
    if isinstance(source, data_settings.OmniglotData):
        return data.omniglot(
            _need(scenario, path),
            drawers=source.drawers,
            held_out_alphabets=source.held_out_alphabets,
            turns=source.turns,
            dealt=data.Dealt(source.characters_each, source.held_out_characters, scenario.seed)
            if source.devices == "characters"
            else None,
        )
    if isinstance(source, data_settings.ShakespeareData):
        return data.shakespeare(
            _need(scenario, path),
            steps=source.steps,
            min_characters=source.min_characters,
            max_windows=source.max_windows,
            devices=fleet.devices,
            query_fraction=source.query_fraction,
            held_out_devices=source.held_out_devices,
            held_out_query_fraction=source.held_out_query_fraction,
            seed=scenario.seed,
        )
    if isinstance(source, data_settings.TextData) and (
        source.in_tokens or (path is not None and path.suffix == ".npy")
    ):
        return token_data(scenario, source, _need(scenario, path))
    assert fleet.devices is not None, "the scenario checked it"
    if isinstance(source, data_settings.TextData):
        return data.plain_text(
            _need(scenario, path),
            devices=fleet.devices,
            steps=source.steps,
            max_windows=source.max_windows,
            query_fraction=source.query_fraction,
            held_out_devices=source.held_out_devices,
            seed=scenario.seed,
        )
    if isinstance(source, data_settings.SinusoidData):
        return data.sinusoids(
            devices=fleet.devices,
            shots=source.shots,
            support=source.support,
            query=source.query,
            held_out_devices=source.held_out_devices,
            oracle=source.oracle,
            seed=scenario.seed,
        )
    return data.synthetic(
        devices=fleet.devices,
        support=source.support,
        query=source.query,
        held_out_devices=source.held_out_devices,
        seed=scenario.seed,
    )


def unseen(devices: int, script: str) -> data.FederatedData:
    """Devices whose data only a training script sees."""
    nothing = data.DeviceData(np.zeros((1, 1), np.float32), np.zeros(1, np.int32), 1, 0)
    card = data.DataCard(
        source=f"what the script {script} reads",
        partition="by the script",
        unit="examples",
        examples=(0,) * devices,
        label_names=(),
        label_counts=((),) * devices,
        notes=("only the script sees the data: the report knows no labels",),
    )
    names = tuple(f"client {i}" for i in range(devices))
    return data.FederatedData((nothing,) * devices, frozenset(), (1,), 1, names, card)


def _dealt(scenario: Scenario, rows: data.Labelled | data.TableRows) -> data.FederatedData:
    """Rows dealt to the devices of a scenario whose data no device owns."""
    source = scenario.data
    assert isinstance(source, DealtData)
    return data.federate(
        rows,
        deal=source.deal(),
        devices=scenario.fleet.devices,
        query_fraction=source.query_fraction,
        held_out_devices=source.held_out_devices,
        seed=scenario.seed,
        classes=getattr(scenario.model, "classes", None),
        standardise=getattr(source, "standardise", False),
        fit=_fit(source),
    )


def _fit(source: DealtData) -> Fit:
    """Finds what a table's columns become."""
    if not isinstance(source, data_settings.TableData):
        return prepared
    return functools.partial(prepared, levels=source.categories_max, buckets=source.text_features)


def _labelled(scenario: Scenario, path: Path | None) -> data.Labelled | data.TableRows:
    """The examples of a source, before they lie on devices."""
    source = scenario.data
    if isinstance(source, data_settings.DigitsData):
        return data.digits()
    if isinstance(source, data_settings.LogisticData):
        assert scenario.fleet.devices is not None, "the scenario checked it"
        return data.logistic(
            devices=scenario.fleet.devices,
            alpha=source.alpha,
            beta=source.beta,
            multiple=source.multiple,
            seed=source.draw,
        )
    if isinstance(source, data_settings.NpzData):
        return data.npz(_need(scenario, path), numbers=source.targets == "numbers")
    if isinstance(source, data_settings.SeriesData):
        return read_own_series(_need(scenario, path), source, scenario.fleet.devices or 0)
    if isinstance(source, data_settings.TableData):
        return read_own_table(_need(scenario, path), table_choice(source), source.split)
    if isinstance(source, data_settings.ImagesData):
        given = _need(scenario, path)
        return read_own_images(given, source.side, source.colour, source.split, source.broken)
    if isinstance(source, data_settings.IdxData):
        return data.idx(_need(scenario, path), source.files)
    readers = {
        data_settings.Cifar10Data: data.cifar10,
        data_settings.FemnistData: data.femnist,
        data_settings.HarData: data.har,
    }
    return readers[type(source)](_need(scenario, path))


def table_of_scenario(scenario: Scenario, path: Path) -> tuple[dict[str, Any], data.TableRows]:
    """All columns of a scenario's table, and its rows before their columns become features.

    Raises DelianError for a table that cannot be read.
    """
    assert isinstance(scenario.data, data_settings.TableData)
    rows = _labelled(scenario, path)
    assert isinstance(rows, data.TableRows)
    return own_data.own_columns(path, scenario.data.split), rows


def _need(scenario: Scenario, path: Path | None) -> Path:
    if path is None:
        raise DelianError(
            f"the scenario {scenario.name} needs a data file",
            "give it with --data FILE, or set data.path in the scenario",
        )
    return path


def _check_errors(loaded: data.FederatedData) -> None:
    """Raises DelianError for targets so large that evaluation would clamp their errors.

    A model that has learnt nothing has errors of the size of the targets.
    """
    from ...core.learning.metrics import LOSS_MAX

    rows = [d.y[: d.examples] for d in loaded.devices if isinstance(d, data.DeviceData)]
    square = float(np.mean(np.square(np.concatenate(rows), dtype=np.float64)))
    if square > LOSS_MAX:
        raise DelianError(
            f"the numbers to learn have a mean square of {square:.3g}, and devices that judge a"
            f" model say squared errors up to {LOSS_MAX:g}",
            "subtract their mean from them and divide by their deviation, or leave out"
            " evaluation.federated: the report measures errors of any size by itself",
        )


def _check_counts(scenario: Scenario, loaded: data.FederatedData) -> None:
    """What the scenario could not check before the data was there."""
    training, devices = len(loaded.training), len(loaded.devices)
    fitting = {"round.cohort": training} if scenario.round.cohort > training else {}
    fitting |= {"round.reports_min": training} if scenario.round.reports_min > training else {}
    fitting |= {"fleet.edges": devices} if scenario.fleet.edges > devices else {}
    hint = settings_table.hint_of(fitting)
    if scenario.round.cohort > training:
        raise DelianError(
            f"a round of {scenario.round.cohort} devices, and the data has {training} that train",
            hint,
        )
    if scenario.fleet.edges > devices:
        raise DelianError(f"{scenario.fleet.edges} edges for {devices} devices", hint)
    if isinstance(scenario.data, data_settings.OmniglotData):
        training_ways = getattr(scenario.algorithm, "training_ways", 0)
        key = "algorithm.training_ways" if training_ways else "data.ways"
        ways = training_ways or scenario.data.ways
        for name, device in zip(loaded.names, loaded.devices, strict=True):
            if isinstance(device, data.EpisodeData) and device.chars < ways:
                raise DelianError(
                    f"device `{name}` has {device.chars} characters, and an episode draws {ways}",
                    f"lower {key}",
                )
