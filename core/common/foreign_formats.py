"""Models and data of other frameworks: what a file or an object is, and the way it takes here.

Nothing is imported for it. Every place that takes a model or data asks here before it says that
something is of no known kind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Literal

from ..common.errors import DelianError

Place = Literal["data", "model", "bundle"]

_TORCH = "delian simulate --torch {stem}.py:Net"
_WEIGHTS = (
    "load it into its module in {stem}.py (net.load_state_dict(torch.load({name!r}))) and call"
    f" dl.simulate(model=net); or save net.state_dict() as {{stem}}.safetensors, and {_TORCH}"
    " --set model.weights={stem}.safetensors (docs/models.md)"
)
_KERAS = (
    "with KERAS_BACKEND=torch a Keras model is a PyTorch module: have a class in {stem}.py load it,"
    f" and {_TORCH} (docs/models.md)"
)
_ONNX = (
    "delian simulate --set model.name=onnx --set model.file={path}, or"
    " dl.simulate(model=dl.from_onnx({path!r})) (docs/models.md)"
)
_CONVERTED = "convert it to ONNX (tf2onnx), then --set model.name=onnx --set model.file={stem}.onnx"
#: What a file is by its suffix, and how its model is federated.
_MODELS = {
    ".onnx": ("a model in ONNX", _ONNX),
    ".pt": ("a file of PyTorch", _WEIGHTS),
    ".pth": ("a file of PyTorch", _WEIGHTS),
    ".ckpt": ("a checkpoint of PyTorch", _WEIGHTS),
    ".safetensors": (
        "weights without a model",
        f"{_TORCH} --set model.weights={{path}} trains the module that they are of; delian model"
        " show {path} lists them (docs/models.md)",
    ),
    ".h5": ("a file of Keras", _KERAS),
    ".keras": ("a model of Keras", _KERAS),
    ".tflite": ("a model of TensorFlow", _CONVERTED),
    ".pb": ("a model of TensorFlow", _CONVERTED),
    ".pkl": (
        "a pickle, which runs code when it is read, so Delian reads none",
        'a model of scikit-learn is federated as --set "model.hidden=[]" (linear) or with layers:'
        ' --set "model.hidden=[64]" (docs/python.md)',
    ),
}
_MODELS[".joblib"] = _MODELS[".pickle"] = _MODELS[".pkl"]
#: The same of data.
_DATA = {
    ".npy": ("one array", "numpy.savez('{stem}.npz', x=..., y=...), then --data {stem}.npz"),
    ".xlsx": ("a spreadsheet", "save it as CSV, then --data {stem}.csv"),
    ".mat": (
        "a file of MATLAB",
        "found = scipy.io.loadmat('{name}'), numpy.savez('{stem}.npz', x=..., y=...), then that",
    ),
    ".pkl": (_MODELS[".pkl"][0], "pandas.read_pickle('{name}').to_parquet('{stem}.parquet')"),
}
_DATA |= {
    ".xls": _DATA[".xlsx"],
    ".pickle": _DATA[".pkl"],
}
_ARCHIVES = (".zip", ".gz", ".tgz", ".tar")
#: Gzipped files that are read as they are.
_GZIPPED = (".csv.gz", ".tsv.gz", ".json.gz", ".jsonl.gz", ".ndjson.gz")
_DATA |= dict.fromkeys(
    _ARCHIVES, ("an archive", "unpack it, and give the folder or the file that is in it")
)
_HUB = ("hf:", "huggingface.co/", "https://huggingface.co/")
_HUB_DATA = (
    "Delian downloads nothing: save it first, datasets.load_dataset('{hub}',"
    " split='train').to_parquet('{stem}.parquet'), then --data {stem}.parquet"
)
_HUB_MODEL = (
    "Delian downloads nothing: a class in a file of yours loads it"
    " (transformers.AutoModel.from_pretrained('{hub}')), then delian simulate --torch"
    " {stem}.py:Net (docs/models.md)"
)
_A_BUNDLE = "a command that takes a BUNDLE reads model.bundle of a run; "


def refuse_file(path: str | os.PathLike[str], place: Place, archives: bool = True) -> None:
    """Raises DelianError for a file, or a name on a hub, of another framework.

    place: what was asked for; a file that may be right there passes. archives: whether those are
    none that are read.
    """
    text = os.fspath(path)
    if (at := text.find("/hf:/")) >= 0:  # what became a file's name, in some folder
        text = text[at + 1 :]
    hub = next((text[len(each) :] for each in _HUB if text.startswith(each)), None)
    if hub is not None:
        named = hub.lstrip("/")
        hub = named.removeprefix("datasets/")
        stem = PurePath(hub).name or "data"
        way = _HUB_DATA if place == "data" or hub != named else _HUB_MODEL
        raise DelianError(f"{text} is a name on Hugging Face", way.format(hub=hub, stem=stem))
    suffix = PurePath(text).suffix.lower()
    if suffix in _ARCHIVES and (not archives or text.lower().endswith(_GZIPPED)):
        return
    if place == "data" and suffix in _DATA:
        what, way = _DATA[suffix]
    elif suffix in _MODELS:
        what, way = _MODELS[suffix]
        if place == "data":
            what += ", and no data"
        if place == "bundle":
            way = _A_BUNDLE + way
    else:
        return
    name, stem = PurePath(text).name, PurePath(text).stem
    raise DelianError(f"{text} is {what}", way.format(name=name, stem=stem, path=text))


def _is_of(thing: Any, package: str, name: str) -> bool:
    """Whether it is an instance of this class of a package, or a class below it."""
    module = sys.modules.get(package)
    kind = thing if isinstance(thing, type) else type(thing)
    base = getattr(module, name, None)
    return isinstance(base, type) and issubclass(kind, base)


def is_torch_module(thing: Any) -> bool:
    """Whether it is a torch.nn.Module, or a class of them; torch is not imported for it."""
    return _is_of(thing, "torch.nn", "Module")


def is_estimator(thing: Any) -> bool:
    """Whether it is an estimator of scikit-learn, or a class of them."""
    return all(callable(getattr(thing, name, None)) for name in ("get_params", "fit"))


def _is_keras(thing: Any) -> bool:
    return _is_of(thing, "keras", "Model") or _is_of(thing, "tensorflow.keras", "Model")


_ESTIMATOR_WAY = (
    'model="mlp" learns tables; settings={"model.hidden": []} (--set "model.hidden=[]") makes it a'
    " linear model, as LogisticRegression and Ridge are"
)
TORCH_WAY = (
    "dl.simulate(data=..., model=net) and delian simulate --torch FILE.py:NAME federate it as it"
    " stands; dl.from_torch(net, (example,)) makes it a model of Delian's language"
    " (docs/models.md)"
)
_KERAS_WAY = (
    "with KERAS_BACKEND=torch it is a PyTorch module: dl.simulate(model=net) (docs/models.md)"
)
_FLAX_WAY = "write its __call__ with dl.nn, whose layers hold arrays as Flax's do (docs/nn.md)"
_ONNX_WAY = "dl.from_onnx(FILE) makes it a model: dl.simulate(data=..., model=dl.from_onnx(FILE))"
_Test = Callable[[Any], bool]
_OBJECTS: tuple[tuple[_Test, str, str], ...] = (
    (is_torch_module, "a PyTorch module", TORCH_WAY),
    (_is_keras, "a Keras model", _KERAS_WAY),
    (
        is_estimator,
        "an estimator of scikit-learn, which has no gradient to federate",
        _ESTIMATOR_WAY,
    ),
    (lambda t: _is_of(t, "flax.linen", "Module"), "a module of Flax", _FLAX_WAY),
    (lambda t: _is_of(t, "onnx", "ModelProto"), "a model of ONNX", _ONNX_WAY),
)
_TORCH_DATA_WAY = (
    "collect its rows: x, y = zip(*dataset), then data=(np.stack(x), np.array(y)); a DataLoader's"
    " are those of its .dataset"
)
_DATASETS: tuple[tuple[_Test, str, str], ...] = (
    (
        lambda t: _is_of(t, "torch.utils.data", "Dataset"),
        "a Dataset of PyTorch",
        _TORCH_DATA_WAY,
    ),
    (
        lambda t: _is_of(t, "torch.utils.data", "DataLoader"),
        "a DataLoader of PyTorch",
        _TORCH_DATA_WAY,
    ),
    (
        lambda t: _is_of(t, "datasets", "Dataset"),
        "a Dataset of Hugging Face",
        "data=dataset.to_pandas(), with target=COLUMN",
    ),
    (
        lambda t: _is_of(t, "datasets", "DatasetDict"),
        "a DatasetDict of Hugging Face",
        'data=datasets["train"].to_pandas(), with target=COLUMN',
    ),
    (
        lambda t: _is_of(t, "tensorflow.data", "Dataset"),
        "a Dataset of TensorFlow",
        "collect its rows, and give data=(x, y)",
    ),
)


def way_of(thing: Any) -> tuple[str, str] | None:
    """What a model's object is, in words, and the way it takes; None: of no framework known."""
    return next(((what, way) for test, what, way in _OBJECTS if test(thing)), None)


def refuse_data(thing: Any) -> None:
    """Raises DelianError for an object that is a data set of another framework, or a model."""
    for test, what, way in (*_DATASETS, *_OBJECTS):
        if test(thing):
            name = getattr(thing, "__name__", type(thing).__name__)
            raise DelianError(f"the data is {what} ({name})", way)
