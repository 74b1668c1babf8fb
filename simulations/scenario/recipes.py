"""From a scenario's tables to the task, the algorithm and the arrays of every device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core import learning
from ...core.common.errors import DelianError
from ...core.common.user_code import load_class, load_function
from ...core.compiler import random
from ...core.compiler.ir import Array, DType, TensorType
from ...core.learning import data as datasets
from ...core.learning import hyperparameters, nn
from ...core.learning.bundle import Bundle
from ...core.learning.data.tokens.token_facts import TokenFacts
from ...core.learning.leaf_roles import Roles
from ...core.learning.sampling import Episodes, EpisodeTable, LastBatch, Samples, SampleSet
from ...core.learning.windows.window_rows import WindowRows
from . import data_settings
from .algorithm_table import OwnTable
from .given_models import init_of
from .scenario import Scenario
from .scenario_keys import words
from .token_data import task_settings

#: What raw values are multiplied by so that the largest is one: digits are 0 to 16, images 0 to
#: 255.
DIGITS_SCALE = 1 / 16
IMAGE_SCALE = 1 / 255
#: Axes of a batch of images: [N, H, W, C].
_IMAGES = 4

#: Sources of characters, which no scale is for.
_TEXTS = (data_settings.ShakespeareData, data_settings.TextData)


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
    """Whether rows of two axes are grey images, which models take with one channel.

    A user's model takes a user's rows, and rows of sensors, as they are: [128, 3] may be three
    signals as well.
    """
    own = (
        data_settings.PythonModel
        | data_settings.TorchModule
        | data_settings.OnnxFile
        | data_settings.GivenModel
    )
    if isinstance(scenario.model, own):
        return not isinstance(
            scenario.data,
            data_settings.NpzData | data_settings.HarData | data_settings.SeriesData,
        )
    return not isinstance(scenario.model, data_settings.MlpModel)


def task(
    scenario: Scenario, data: datasets.FederatedData, given: Any = None
) -> tuple[learning.Task, TensorType]:
    """The task, and the type of a batch that its model takes.

    given: the model of a scenario whose model is a caller's object.
    """
    example = arrays(scenario, data.devices[0])
    if isinstance(example, EpisodeTable):
        assert isinstance(scenario.data, data_settings.OmniglotData)
        few = scenario.data
        ways = getattr(scenario.algorithm, "training_ways", 0)
        episodes = Episodes(few.ways, few.shots, few.queries, few.episodes, training_ways=ways)
        shape: tuple[int, ...] = (few.ways * few.queries, *example.images.shape[2:], 1)
        batch = TensorType(DType.F32, shape)
        own = _model(scenario, batch, episodes.labels, (), given)
        episodes = dataclasses.replace(episodes, keyed=own.draws)
        return own.task(learning.Classification, scenario.name, episodes), batch
    share = getattr(scenario.algorithm, "adapt_share", Samples.adapt_share)
    scaling = data.scaling
    scale = _scale(scenario, example.x) if scaling is None else scaling.scale
    last: LastBatch = getattr(scenario.data, "last_batch", Samples.last_batch)
    source = Samples(scenario.algorithm.batch_size, scale, adapt_share=share, last_batch=last)
    shape = (source.query_size, *example.x.shape[1:])
    classes = getattr(scenario.model, "classes", None) or data.classes
    text = isinstance(scenario.data, _TEXTS)
    batch = TensorType(DType.of(example.x.dtype) if text else DType.F32, shape)
    own = _model(scenario, batch, classes, example.y.shape[1:], given, data.tokens)
    shift = () if scaling is None else scaling.shift
    source = dataclasses.replace(source, keyed=own.draws, shift=shift)
    if scenario.regression and (why := scenario.algorithm.algorithm_class.labels_only):
        raise DelianError(
            f"{scenario.algorithm.name} {why}, and the data has numbers to learn",
            "choose another algorithm, such as maml or fedavg",
        )
    if data.tokens is not None:
        return _token_task(scenario, own, data.tokens, source), batch
    if not scenario.regression:
        return own.task(learning.Classification, scenario.name, source), batch
    units = (
        {} if scaling is None else {"shift": scaling.target_shift, "scale": scaling.target_scale}
    )
    return own.task(learning.Regression, scenario.name, source, **units), batch


def _token_task(
    scenario: Scenario, own: _Model, tokens: TokenFacts, source: Samples
) -> learning.Task:
    """What is learnt of rows of token ids."""
    kinds: dict[str, Any] = {
        "next-token": learning.NextToken,
        "masked-token": learning.MaskedToken,
        "classification": learning.Classification,
    }
    masks = tokens.task == "masked-token"
    source = dataclasses.replace(source, keyed=own.draws or masks)
    return own.task(kinds[tokens.task], scenario.name, source, **task_settings(tokens))


def roles(scenario: Scenario, task: learning.Task) -> Roles:
    """The roles of the model's leaves that the scenario gives."""
    chosen = scenario.partial
    frozen = chosen.frozen
    if chosen.adapters != "none" or isinstance(scenario.model, data_settings.GivenModel):
        from ...core.learning.adapters.adapted import adapter_roles, settings_of

        model = task.init(random.key(scenario.seed))
        if settings_of(model) is not None:
            frozen = (*adapter_roles(model), *frozen)
    return Roles(frozen, chosen.personal)


def adapted(scenario: Scenario, init: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """The init function of the model with the scenario's adapters."""
    chosen = scenario.partial
    if chosen.adapters == "none":
        return init
    from ...core.learning import adapters

    model = init(random.key(scenario.seed))
    if chosen.dropout and not hasattr(model, "in_training"):
        raise DelianError(
            f"partial.dropout: {type(model).__name__} passes no random key to its layers",
            "leave it out, or import a module of PyTorch, which does",
        )
    saved = chosen.trained_modules
    targets = "all-linear" if chosen.targets == ("all-linear",) else chosen.targets
    if chosen.adapters == "ia3":
        return _given(adapters.ia3(model, targets, chosen.feedforward, modules_to_save=saved))
    make = adapters.lora if chosen.adapters == "lora" else adapters.dora
    made = make(
        model,
        chosen.rank,
        targets,
        chosen.alpha,
        chosen.dropout,
        seed=scenario.seed,
        modules_to_save=saved,
    )
    return _given(made)


def check_labels(scenario: Scenario, data: datasets.FederatedData, bundle: Bundle) -> None:
    """Raises DelianError where a model has fewer outputs than the data has labels.

    The loss of a label without an output would be the loss of another label.
    """
    if scenario.regression or isinstance(scenario.data, data_settings.OmniglotData):
        return
    logits = bundle.inference.result_types[0]
    assert isinstance(logits, TensorType)
    if data.tokens is not None and data.tokens.task != "classification":
        if logits.shape[-1] < data.classes:
            raise DelianError(
                f"the model's logits are of {logits.shape[-1]} tokens, and the tokenizer has"
                f" {data.classes}: it is another model's",
                "give the tokenizer that the model was made for, or a model with as many outputs",
            )
        return
    if logits.shape[-1] < data.classes:
        raise DelianError(
            f"the model's logits are of {logits.shape[-1]} labels, and the data has"
            f" {data.classes} labels",
            "give a logit for each; an init function gets the number as `classes`",
        )


def _scale(scenario: Scenario, x: Array) -> float:
    if isinstance(scenario.data, _TEXTS):
        return 1.0
    if isinstance(scenario.data, data_settings.DigitsData):
        return DIGITS_SCALE
    if isinstance(scenario.data, data_settings.IdxData | data_settings.Cifar10Data):
        return IMAGE_SCALE  # whatever noise has made of the bytes
    given = getattr(scenario.data, "scale", None)
    if given is not None:
        return float(given)
    return IMAGE_SCALE if x.dtype == np.uint8 else 1.0


@dataclasses.dataclass(frozen=True)
class _Model:
    """A scenario's model and what comes with it."""

    init: Callable[[Array], Any]
    """Makes the first one."""
    draws: bool = False
    """Whether it draws random numbers in training."""
    criterion: Callable[[Any, Any], Any] | None = None
    """A loss of its own."""

    def task(
        self,
        kind: Callable[..., learning.Task],
        name: str,
        source: Samples | Episodes,
        **settings: Any,
    ) -> learning.Task:
        if self.criterion is not None:
            settings["criterion"] = self.criterion
        return kind(name, self.init, source, **settings)


def _model(
    scenario: Scenario,
    batch: TensorType,
    classes: int,
    targets: tuple[int, ...],
    given: Any,
    tokens: TokenFacts | None = None,
) -> _Model:
    """The scenario's model. targets: axes of the targets after the batch's. given: as of `task`."""
    found = _plain_model(scenario, batch, classes, targets, given, tokens)
    draws = found.draws or scenario.partial.dropout > 0.0
    return dataclasses.replace(found, init=adapted(scenario, found.init), draws=draws)


def _plain_model(
    scenario: Scenario,
    batch: TensorType,
    classes: int,
    targets: tuple[int, ...],
    given: Any,
    tokens: TokenFacts | None,
) -> _Model:
    """The model without adapters."""
    if isinstance(scenario.model, data_settings.GivenModel):
        if given is None:
            raise DelianError(
                "the model `given` is an object that a caller brings",
                "pass it: dl.simulate(..., model=net)",
            )
        return _Model(*init_of(scenario, given, batch, classes, tokens))
    if isinstance(scenario.model, data_settings.TorchModule):
        from .torch_modules import criterion, imported

        made = imported(scenario, batch.shape[1:], batch.dtype.numpy, tokens)
        loss = criterion(scenario, made, targets)
        return _Model(_given(made), made.graphs.training.draws, loss)
    if isinstance(scenario.model, data_settings.OnnxFile):
        from ...core.learning.interchange.onnx import from_onnx

        assert scenario.model_file is not None
        turned = batch.rank == _IMAGES and scenario.model.images == "channels_first"
        return _Model(_given(from_onnx(scenario.model_file).for_task(turned)))
    return _Model(_init(scenario, batch.shape[1:], classes, tokens))


def _given(model: Any) -> Callable[[Array], Any]:
    return lambda key: model


def _init(
    scenario: Scenario, shape: tuple[int, ...], classes: int, tokens: TokenFacts | None = None
) -> Callable[[Array], Any]:
    """The function that makes the first model, for rows of this shape."""
    model = scenario.model
    if isinstance(model, data_settings.PythonModel):
        assert scenario.model_file is not None
        own = load_function(
            scenario.model_file,
            model.function,
            "model.file is relative to the scenario's folder; model.function names a function"
            " init(key, shape, classes)",
        )
        return lambda key: own(key, shape, classes)
    if isinstance(model, data_settings.MlpModel):
        inputs, hidden = int(np.prod(shape)), model.hidden
        kind = nn.NormalisedMlp if model.batch_norm else nn.Mlp
        return lambda key: kind.init(key, inputs, hidden, classes)
    if isinstance(model, data_settings.LstmModel):
        embedding, width, layers = model.embedding, model.hidden, model.layers
        return lambda key: nn.CharLstm.init(key, classes, embedding, width, layers)
    if isinstance(model, data_settings.TransformerModel):
        return _transformer(model, classes, tokens)
    if len(shape) != 3:
        raise DelianError(
            f"the {model.name} model reads images; the data's examples are of shape {list(shape)}",
            "use the mlp model, or data of [n, height, width] or [n, height, width, channels]",
        )
    height, width, channels = shape
    if isinstance(model, data_settings.CnnModel):
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
    assert isinstance(model, data_settings.OmniglotModel)
    filters, strided = model.filters, model.strided
    return lambda key: nn.OmniglotNet.init(key, channels, filters, classes, strided=strided)


def _transformer(
    model: data_settings.TransformerModel, classes: int, tokens: TokenFacts | None
) -> Callable[[Array], Any]:
    """A small transformer of characters, or of tokens for their task."""
    symbols = classes if tokens is None else tokens.vocabulary
    task = "next-token" if tokens is None else tokens.task
    sizes = (symbols, classes, model.width, model.depth, model.heads)
    end = tokens.end if tokens is not None and model.documents_apart else None
    if model.documents_apart and end is None:
        raise DelianError(
            "model.documents_apart needs an id that ends documents, and the data has none",
            "name it with data.end_id, or leave model.documents_apart out",
        )
    kind: dict[str, Any] = {
        "causal": task == "next-token",
        "pooled": task == "classification",
        "end": end,
    }
    return lambda key: nn.TokenTransformer.init(key, *sizes, **kind)


def algorithm(scenario: Scenario, data: datasets.FederatedData) -> learning.Algorithm:
    """The algorithm of a scenario: its table's keys are the algorithm's fields.

    The server's optimiser is not among them: it is a stage of the chain (`composition`).
    """
    chosen = scenario.algorithm
    if isinstance(chosen, OwnTable):
        return _own_algorithm(scenario, chosen, data)
    values = chosen.hyperparameters()
    facts = {**_facts(scenario, data), **values, "learning_rate": chosen.learning_rate}
    wanted = hyperparameters.facts_wanted(chosen.algorithm_class)
    values |= {name: facts[fact] for name, fact in wanted.items()}
    local = _optimizer(chosen.optimizer, chosen.learning_rate, chosen.momentum)
    return chosen.algorithm_class(local=local, **values)


def what_is_read(scenario: Scenario, data: datasets.FederatedData) -> dict[str, Any]:
    """All that `task` and `algorithm` read of a scenario without files of the user's.

    It is plain data. What they read of a device's arrays, their types, is not among it.
    """
    plain = scenario.to_json()
    wanted = hyperparameters.facts_wanted(scenario.algorithm.algorithm_class).values()
    facts = {name: fact for name, fact in _facts(scenario, data).items() if name in wanted}
    names = ("name", "data", "model", "algorithm", "partial", "seed")
    tables = {name: plain[name] for name in names}
    scaling = None if data.scaling is None else dataclasses.asdict(data.scaling)
    tokens = {} if data.tokens is None else {"tokens": dataclasses.asdict(data.tokens)}
    return {**tables, "classes": data.classes, "scaling": scaling, "facts": facts, **tokens}


#: Keys that a local optimiser is made of.
_LOCAL = {"optimizer", "learning_rate", "momentum"}


def _facts(scenario: Scenario, data: datasets.FederatedData) -> dict[str, float]:
    """What a run knows that an algorithm may ask for (`hyperparameters.FromRun`)."""
    devices = len(data.training)
    share = min(1.0, scenario.round.cohort / devices)
    return {"training_devices": devices, "cohort_share": share}


def _own_algorithm(
    scenario: Scenario, chosen: OwnTable, data: datasets.FederatedData
) -> learning.Algorithm:
    """A user's algorithm with the keys that the scenario sets, and its own defaults."""
    kind, said = _own_kind(scenario, chosen), chosen.model_fields_set
    names = [field.name for field in dataclasses.fields(kind)]
    values = {n: v for n, v in chosen.hyperparameters().items() if n in said and n in names}
    if said & _LOCAL:
        values["local"] = _optimizer(chosen.optimizer, chosen.learning_rate, chosen.momentum)
    facts = _facts(scenario, data)
    wanted = hyperparameters.facts_wanted(kind)
    values |= {name: facts[fact] for name, fact in wanted.items() if fact in facts}
    _check_bounds(scenario, kind, chosen.settings)
    try:
        return kind(**{**values, **chosen.settings})
    except (TypeError, ValueError, DelianError) as fault:
        raise DelianError(
            f"{scenario.algorithm_file}: {kind.__name__} cannot be made: {fault}",
            f"algorithm.settings are fields of its own; it has {', '.join(names)}",
        ) from fault


def _check_bounds(
    scenario: Scenario, kind: type[learning.Algorithm], values: Mapping[str, Any]
) -> None:
    """Raises DelianError where a value is outside the bounds of its field."""
    for name, field in hyperparameters.hyperparameters(kind).items():
        if name in values and not field.allows(values[name]):
            raise DelianError(
                f"{scenario.algorithm_file}: algorithm.settings.{name} cannot be {values[name]}",
                f"it must be {words(field.type, [field.bounds])}",
            )


def _own_kind(scenario: Scenario, chosen: OwnTable) -> type[learning.Algorithm]:
    """The class of a user's algorithm."""
    assert scenario.algorithm_file is not None
    kind = load_class(
        scenario.algorithm_file,
        learning.Algorithm,
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


def weight_max(algorithm: learning.Algorithm, data: datasets.FederatedData) -> float:
    """The largest weight that a device of this federation has in the mean."""
    sizes = {(d.support, d.query) for d in data.devices if isinstance(d, datasets.DeviceData)}
    no = np.array(0)
    rows = [SampleSet(no, no, np.array(support), np.array(query)) for support, query in sizes]
    return max((float(algorithm.weight(each)) for each in rows), default=1.0)


def examples(arrays: Any) -> int:
    """What a device trains on: rows of its support set, or characters to draw episodes from.

    Of windows of rows these are all rows, as far as the cost of a training goes.
    """
    if isinstance(arrays, WindowRows):
        return arrays.source.rows
    return int(arrays.support if isinstance(arrays, SampleSet) else arrays.characters)


def local_steps(scenario: Scenario, arrays: Any) -> int:
    """Gradient steps in one local update."""
    chosen = scenario.algorithm
    algorithm = chosen.algorithm_class(**chosen.hyperparameters())
    if steps := algorithm.fixed_steps():
        return steps
    if isinstance(arrays, EpisodeTable):
        assert isinstance(scenario.data, data_settings.OmniglotData)
        return algorithm.epochs * scenario.data.episodes
    rows = examples(arrays)
    if algorithm.splits_rows:
        share = getattr(chosen, "adapt_share", Samples.adapt_share)
        rows -= rows * round(100 * share) // 100
    drops = getattr(scenario.data, "last_batch", "") == "drop"
    batches = rows // chosen.batch_size if drops else -(-rows // chosen.batch_size)
    return algorithm.epochs * max(1, batches)
