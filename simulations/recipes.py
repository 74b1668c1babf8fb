"""From a scenario's tables to what is compiled: the task, the algorithm and the arrays of every
device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core import data as datasets
from ..core import learn, nn
from ..core.bundle import Bundle
from ..core.errors import DelianError
from ..core.ir import Array, DType, TensorType
from ..core.learn.sampling import Episodes, EpisodeTable, LastBatch, Samples, SampleSet
from ..core.user_code import load_class, load_function
from . import algorithms, settings
from .scenario import Scenario

#: What raw values are multiplied by so that the largest is one: digits are 0 to 16, images 0 to
#: 255.
DIGITS_SCALE = 1 / 16
IMAGE_SCALE = 1 / 255


def arrays(scenario: Scenario, device: datasets.DeviceData | datasets.EpisodeData) -> Any:
    """One device's data as its programs take it: a SampleSet or an EpisodeTable."""
    if isinstance(device, datasets.EpisodeData):
        return EpisodeTable(device.x, np.array(device.chars, np.int64))
    x = device.x
    if x.ndim == 3 and _grey(scenario):
        x = x[..., None]
    return SampleSet(
        x, device.y, np.array(device.support, np.int64), np.array(device.query, np.int64)
    )


def _grey(scenario: Scenario) -> bool:
    """Whether rows of two axes are grey images, which models take with one channel. A user's model
    takes a user's rows, and those of sensors, as they are: [128, 3] may be three signals as well.
    """
    if isinstance(scenario.model, settings.PythonModel):
        return not isinstance(scenario.data, settings.NpzData | settings.HarData)
    return not isinstance(scenario.model, settings.MlpModel)


def task(scenario: Scenario, data: datasets.FederatedData) -> tuple[learn.Task, TensorType]:
    """The task, and the type of a batch that its model takes."""
    example = arrays(scenario, data.devices[0])
    if isinstance(example, EpisodeTable):
        assert isinstance(scenario.data, settings.OmniglotData)
        few = scenario.data
        source: Samples | Episodes = Episodes(few.ways, few.shots, few.queries, few.episodes)
        shape: tuple[int, ...] = (few.ways * few.queries, *example.images.shape[2:], 1)
        init = _init(scenario, shape[1:], few.ways)
        return learn.Classification(scenario.name, init, source), TensorType(DType.F32, shape)
    share = getattr(scenario.algorithm, "adapt_share", 0.5)
    scale = _scale(scenario, example.x)
    last: LastBatch = getattr(scenario.data, "last_batch", Samples.last_batch)
    source = Samples(scenario.algorithm.batch_size, scale, adapt_share=share, last_batch=last)
    shape = (source.query_size, *example.x.shape[1:])
    classes = getattr(scenario.model, "classes", None) or data.classes
    text = isinstance(scenario.data, settings.ShakespeareData)
    batch = TensorType(DType.of(example.x.dtype) if text else DType.F32, shape)
    init = _init(scenario, shape[1:], classes)
    if scenario.regression and scenario.algorithm.name == "protonet":
        raise DelianError(
            "protonet makes prototypes of classes, and the data has numbers to learn",
            "choose another algorithm, such as maml or fedavg",
        )
    kind = learn.Regression if scenario.regression else learn.Classification
    return kind(scenario.name, init, source), batch


def check_labels(scenario: Scenario, data: datasets.FederatedData, bundle: Bundle) -> None:
    """Raises DelianError where a model cannot name every label of the data: the loss of a label
    that it has no number for would be that of another one.
    """
    if scenario.regression or isinstance(scenario.data, settings.OmniglotData):
        return
    logits = bundle.programs["infer"].result_types[0]
    assert isinstance(logits, TensorType)
    given = logits.shape[-1] if len(logits.shape) > 1 else 1
    if given < data.classes:
        raise DelianError(
            f"the model gives {given} number{'s' * (given != 1)} a row, and the data has"
            f" {data.classes} labels",
            "its init function is told how many as `classes`",
        )


def _scale(scenario: Scenario, x: Array) -> float:
    if isinstance(scenario.data, settings.ShakespeareData):
        return 1.0
    if isinstance(scenario.data, settings.DigitsData):
        return DIGITS_SCALE
    if isinstance(scenario.data, settings.IdxData | settings.Cifar10Data):
        return IMAGE_SCALE  # whatever noise has made of the bytes
    given = getattr(scenario.data, "scale", None)
    if given is not None:
        return float(given)
    return IMAGE_SCALE if x.dtype == np.uint8 else 1.0


def _init(scenario: Scenario, shape: tuple[int, ...], classes: int) -> Callable[[Array], Any]:
    """The function that makes the first model, for rows of this shape."""
    model = scenario.model
    if isinstance(model, settings.PythonModel):
        assert scenario.model_file is not None
        own = load_function(
            scenario.model_file,
            model.function,
            "model.file is relative to the scenario's folder; model.function names a function"
            " init(key, shape, classes)",
        )
        return lambda key: own(key, shape, classes)
    if isinstance(model, settings.MlpModel):
        inputs, hidden = int(np.prod(shape)), model.hidden
        kind = nn.NormalisedMlp if model.batch_norm else nn.Mlp
        return lambda key: kind.init(key, inputs, hidden, classes)
    if isinstance(model, settings.LstmModel):
        embedding, width, layers = model.embedding, model.hidden, model.layers
        return lambda key: nn.CharLstm.init(key, classes, embedding, width, layers)
    if len(shape) != 3:
        raise DelianError(
            f"the {model.name} model reads images; the data's examples are of shape {list(shape)}",
            "use the mlp model, or data of [n, height, width] or [n, height, width, channels]",
        )
    height, width, channels = shape
    if isinstance(model, settings.CnnModel):
        if height < 4 or width < 4:
            raise DelianError(
                f"the cnn model halves an image twice, and these are {height} x {width}",
                "use the mlp model, or images of at least 4 x 4",
            )
        units = model.hidden
        return lambda key: nn.FedAvgCnn.init(key, height, width, channels, classes, units)
    if height // 16 != 1 or width // 16 != 1:
        raise DelianError(
            f"the omniglot model reads images of 16 to 31 pixels a side, not {height} x {width}",
            "use the cnn model",
        )
    filters, strided = model.filters, model.strided
    return lambda key: nn.OmniglotNet.init(key, channels, filters, classes, strided=strided)


#: The catalogue: a class by the name that scenarios have for it.
KINDS: Mapping[str, str] = {
    "fomaml": "Maml",
    **{
        name.lower(): name
        for name in (
            *("Anil", "Apfl", "Ditto", "FedAvg", "FedBabu", "FedDyn", "FedNova", "FedPer"),
            *("FedProx", "FedRep", "FedSgd", "Ifca", "Maml", "MetaSgd", "PFedMe", "PerFedAvg"),
            *("ProtoNet", "Reptile", "Scaffold"),
        )
    },
}


def algorithm(scenario: Scenario, data: datasets.FederatedData) -> learn.Algorithm:
    """The algorithm of a scenario: its table's keys are the algorithm's fields, but for the
    server's optimiser, which is the chain's (`composition`).
    """
    chosen = scenario.algorithm
    if isinstance(chosen, algorithms.PythonAlgorithm):
        return _own_algorithm(scenario, chosen, data)
    kind: type[learn.Algorithm] = getattr(learn, KINDS[chosen.name])
    facts: dict[str, Any] = {
        "local": _optimizer(chosen.optimizer, chosen.learning_rate, chosen.momentum),
    }
    facts |= _fleet(kind, scenario, data)
    for field in dataclasses.fields(kind):
        if field.name not in facts and hasattr(chosen, field.name):
            facts[field.name] = getattr(chosen, field.name)
    return kind(**facts)


#: Keys that a user's algorithm may have fields for, and those that its local optimiser is made of.
_SHARED = {"epochs", "local_steps", "personal_steps", "personal_learning_rate"}
_LOCAL = {"optimizer", "learning_rate", "momentum"}


def _fleet(
    kind: type[learn.Algorithm], scenario: Scenario, data: datasets.FederatedData
) -> dict[str, float]:
    """How many devices may take part, and the share of them that a round asks for, for algorithms
    whose server needs to know it.
    """
    if not issubclass(kind, learn.Scaffold | learn.FedDyn):
        return {}
    fleet = len(data.training)
    return {"share": min(1.0, scenario.round.devices / fleet), "fleet": fleet}


def _own_algorithm(
    scenario: Scenario, chosen: algorithms.PythonAlgorithm, data: datasets.FederatedData
) -> learn.Algorithm:
    """A user's: of the keys it is given those that the scenario says; it has defaults of its own
    for the others.
    """
    kind, said = _own_kind(scenario, chosen), chosen.model_fields_set
    names = [field.name for field in dataclasses.fields(kind)]
    facts = {n: getattr(chosen, n) for n in names if n in said & _SHARED}
    if said & _LOCAL:
        facts["local"] = _optimizer(chosen.optimizer, chosen.learning_rate, chosen.momentum)
    facts |= _fleet(kind, scenario, data)
    try:
        return kind(**{**facts, **chosen.settings})
    except (TypeError, ValueError, DelianError) as fault:
        raise DelianError(
            f"{scenario.algorithm_file}: {kind.__name__} cannot be made: {fault}",
            f"algorithm.settings are fields of its own; it has {', '.join(names)}",
        ) from fault


def _own_kind(scenario: Scenario, chosen: algorithms.PythonAlgorithm) -> type[learn.Algorithm]:
    """The class of a user's algorithm."""
    assert scenario.algorithm_file is not None
    kind = load_class(
        scenario.algorithm_file,
        learn.Algorithm,
        chosen.kind,
        "algorithm.file is relative to the scenario's folder; algorithm.kind names a dataclass in"
        " it that extends dl.learn.Algorithm",
    )
    if "__dataclass_params__" not in vars(kind):
        raise DelianError(
            f"{scenario.algorithm_file}: {kind.__name__} is no dataclass",
            "write @dataclass(frozen=True) above it",
        )
    return kind


def _optimizer(name: str, learning_rate: float, momentum: float = 0.0) -> nn.Optimizer:
    return nn.adam(learning_rate) if name == "adam" else nn.sgd(learning_rate, momentum)


def weight_max(algorithm: learn.Algorithm, data: datasets.FederatedData) -> float:
    """The largest weight that a device of this federation has in the mean."""
    sizes = {(d.support, d.query) for d in data.devices if isinstance(d, datasets.DeviceData)}
    no = np.array(0)
    rows = [SampleSet(no, no, np.array(support), np.array(query)) for support, query in sizes]
    return max((float(algorithm.weight(each)) for each in rows), default=1.0)


def examples(arrays: Any) -> int:
    """What a device trains on: rows of its support set, or characters to draw episodes from."""
    return int(arrays.support if isinstance(arrays, SampleSet) else arrays.characters)


def local_steps(scenario: Scenario, arrays: Any) -> int:
    """Gradient steps in one local update."""
    chosen = scenario.algorithm
    if isinstance(chosen, algorithms.Reptile):
        return chosen.inner_steps
    epochs = getattr(chosen, "epochs", 1)
    if steps := getattr(chosen, "local_steps", 0):
        return int(epochs * steps)
    if isinstance(arrays, EpisodeTable):
        assert isinstance(scenario.data, settings.OmniglotData)
        return int(epochs * scenario.data.episodes)
    rows = examples(arrays)
    if isinstance(chosen, algorithms.MetaLearning | algorithms.ProtoNet):
        rows -= rows * round(100 * getattr(chosen, "adapt_share", 0.5)) // 100
    drops = getattr(scenario.data, "last_batch", "") == "drop"
    batches = rows // chosen.batch_size if drops else -(-rows // chosen.batch_size)
    return int(epochs * max(1, batches))
