"""A scenario's data and model: each a choice among tables that know their own keys.

A key that the chosen algorithm does not know is refused: a key without effect is not tuned.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ...core.learning.data.partition.deal import BY_LABEL, AnyPartition
from .partition_settings import DealtData, RowData
from .settings_table import DEVICES_MAX, Table, conflict
from .text_settings import ShakespeareData as ShakespeareData
from .text_settings import TextData as TextData


class DigitsData(DealtData):
    """The handwritten digits inside scikit-learn: 1,797 images of 8 x 8. Needs no file."""

    source: Literal["digits"] = "digits"
    """Where the data comes from."""


class OwnData(DealtData):
    """What data of a user's own have in common."""

    path: str | None = None
    """The file or folder, relative to the scenario's folder. `--data` wins over it."""
    partition: AnyPartition = "dirichlet"  # type: ignore[assignment]
    """How examples are dealt out: as for `digits`, or `natural` (by the file's `device`)."""
    group_size: int = Field(default=1, ge=1, le=DEVICES_MAX)
    """So many of the file's own devices are one device, of a `natural` partition."""
    min_examples: int = Field(default=4, ge=2, le=100_000)
    """Every device has at least this many examples; natural devices with fewer are left out."""

    @model_validator(mode="after")
    def _numbers_can_be_dealt(self) -> Self:
        if getattr(self, "targets", "") != "numbers":
            return self
        if self.partition in BY_LABEL:
            raise conflict(
                "partition",
                f"a {self.partition} partition deals by labels, and data.targets are numbers; "
                "continuous deals by numbers, iid, quantity and natural do not look at them",
            )
        if self.concepts > 1:
            raise conflict("concepts", "labels are permuted, and data.targets are numbers")
        return self


class NpzData(OwnData):
    """Your own .npz file: `x` [n, ...] and `y` [n].

    `device` [n] is the natural partition; rows whose `query` [n] is set are for evaluation only.
    """

    source: Literal["npz"] = "npz"
    """Where the data comes from."""
    scale: float | None = Field(default=None, gt=0.0)
    """What raw values are multiplied by. Absent: 1/255 for u8, 1 for floats."""
    targets: Literal["labels", "numbers"] = "labels"
    """What `y` holds: class labels, or `numbers`, one a row or several ([n, k]), for a
    regression by the mean squared error.
    """
    standardise: bool = False
    """Whether the features of rows [n, k], and numbers that are learnt, get a mean of zero and a
    deviation of one, by sums over the devices that train.
    """


class TableData(OwnData):
    """Your own table: a CSV or Parquet file, or a data frame.

    Text of few values becomes a feature for each value; a column `device` is the natural partition.
    """

    source: Literal["table"] = "table"
    """Where the data comes from."""
    target: str = ""
    """The column that is learnt. Absent: one called target, label, class or y, else the last."""
    device: str = ""
    """The column that says which device a row is on. Absent: one called device or client."""
    columns: tuple[str, ...] = Field(default=(), strict=False, max_length=1 << 14)
    """The features. Absent: all other columns."""
    split: str = ""
    """Of a folder with several splits, the one that is read. Absent: the one to train on."""
    targets: Literal["labels", "numbers"] = "labels"
    """What the target holds: class labels, or `numbers`, for a regression by the mean squared
    error. `--data` finds out.
    """
    text_features: int = Field(default=1024, ge=1, le=1 << 14)
    """Features of a column of texts: buckets that its words are hashed to."""
    categories_max: int = Field(default=32, ge=1, le=1024)
    """The most frequent values of a column of text that have a feature; others share one."""
    standardise: bool = True
    """Whether features, and numbers that are learnt, get a mean of zero and a deviation of one, by
    sums over the devices that train.
    """


class SeriesData(TableData):
    """Your own time series: windows of a table's rows, split by time.

    Numbers are forecast; a target of labels is learnt of each window. A column `device` says which
    series a row is of, and each is a device; of a single series each device has a piece.
    """

    source: Literal["series"] = "series"  # type: ignore[assignment]
    """Where the data comes from."""
    partition: AnyPartition = "natural"  # type: ignore[assignment]
    """How windows are dealt out: `natural` keeps those of a series together."""
    time: str = ""
    """The column of times. Absent: one called time, date or alike, or the only one of dates."""
    window: int = Field(default=24, ge=1, le=65_536)
    """Rows of a window."""
    horizon: int = Field(default=1, ge=1, le=4096)
    """Of numbers: how many of the following rows are forecast."""
    stride: int = Field(default=1, ge=1, le=1_000_000)
    """Rows from one window's begin to the next one's."""

    @model_validator(mode="after")
    def _series_are_kept(self) -> Self:
        if self.partition != "natural":
            raise conflict(
                "partition", "windows of one series overlap: other partitions would separate them"
            )
        return self


class ImagesData(OwnData):
    """Your own images: a folder for each class. Needs the extra `images`."""

    source: Literal["images"] = "images"
    """Where the data comes from."""
    side: int = Field(default=32, ge=4, le=1024)
    """Images are scaled to so many pixels a side."""
    colour: bool = True
    """Whether they have three channels, or one."""
    split: str = ""
    """Of a folder with several splits, the one that is read. Absent: the one to train on."""
    broken: Literal["refuse", "skip"] = "refuse"
    """Whether files that are no images are an error, or left out with a note."""


class StoredData(RowData):
    """Your own rows in files, which need not fit in memory: a folder with a folder for each device.

    Such a folder holds `x.npy` and `y.npy`, or Parquet or packed files.
    """

    source: Literal["stored"] = "stored"
    """Where the data comes from."""
    path: str | None = None
    """The folder, relative to the scenario's folder. `--data` wins over it."""
    rows_in_memory: int = Field(default=4096, ge=2, le=1 << 30)
    """Rows that a device has in memory at once. One with more of them trains in windows of so many.
    """
    scale: float | None = Field(default=None, gt=0.0)
    """What raw values are multiplied by. Absent: 1/255 for u8, 1 for floats."""
    targets: Literal["labels", "numbers"] = "labels"
    """What `y` holds: class labels, or `numbers` for a regression by the mean squared error."""
    query_fraction: float = Field(default=0.25, gt=0.0, lt=1.0)
    """The share of a device's examples that only judge and are never trained on, chosen by their
    content as on a real device.
    """
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Devices that never train and show how the model serves newcomers."""


class IdxData(DealtData):
    """MNIST, Fashion-MNIST or EMNIST: a folder of their IDX files, gzipped or not."""

    source: Literal["idx"] = "idx"
    """Where the data comes from."""
    path: str | None = None
    """The folder, relative to the scenario's. `--data` wins over it."""
    files: str = ""
    """What their names begin with, where a folder has several sets: emnist-digits."""


class Cifar10Data(DealtData):
    """CIFAR-10: a folder of its binary version's files."""

    source: Literal["cifar10"] = "cifar10"
    """Where the data comes from."""
    path: str | None = None
    """The folder, relative to the scenario's. `--data` wins over it."""


class FemnistData(RowData):
    """FEMNIST: 62 characters, a writer is a device; a folder of LEAF's JSON files."""

    source: Literal["femnist"] = "femnist"
    """Where the data comes from."""
    path: str | None = None
    """The folder, relative to the scenario's. `--data` wins over it."""
    min_examples: int = Field(default=10, ge=2, le=100_000)
    """Writers with fewer images are left out."""
    query_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The share of a writer's images that only judge and are never trained on."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Writers that never train and show how the model serves newcomers."""


class HarData(RowData):
    """UCI HAR: what people do, by the motion of their phones; a subject is a device."""

    source: Literal["har"] = "har"
    """Where the data comes from."""
    path: str | None = None
    """The folder, relative to the scenario's. `--data` wins over it."""
    query_fraction: float = Field(default=0.25, gt=0.0, lt=1.0)
    """The share of a subject's windows that only judge and are never trained on."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Subjects that never train and show how the model serves newcomers."""


class OmniglotData(Table):
    """Few-shot characters.

    A device is one alphabet drawn by a few people, or some characters of any alphabets.
    """

    source: Literal["omniglot"] = "omniglot"
    """Where the data comes from."""
    path: str | None = None
    """The published archives' folder, one of them, or an .npz file, relative to the scenario's
    folder. `--data` wins over it.
    """
    ways: int = Field(default=5, ge=2, le=50)
    """Classes in an episode (N)."""
    shots: int = Field(default=1, ge=1, le=19)
    """Drawings of each character to learn from (K)."""
    queries: int = Field(default=3, ge=1, le=19)
    """Drawings of each character to be judged by; `shots + queries` is at most `drawers`."""
    drawers: int = Field(default=4, ge=2, le=20)
    """People on one device."""
    devices: Literal["alphabets", "characters"] = "alphabets"
    """What a device holds: an alphabet, or `characters` drawn at random among all alphabets, as
    few-shot learning is judged in papers.
    """
    held_out_alphabets: int = Field(default=2, ge=0, le=100)
    """The devices of the last alphabets never train: their characters are new."""
    characters_each: int = Field(default=24, ge=2, le=10_000)
    """Devices of `characters`: about so many on each."""
    held_out_characters: int = Field(default=62, ge=0, le=10_000)
    """Devices of `characters`: so many, drawn at random, are on devices that never train."""
    turns: int = Field(default=1, ge=1, le=4)
    """Each character turned by so many quarters, from none, is so many characters; 4 in papers."""
    episodes: int = Field(default=4, ge=1, le=1000)
    """Episodes a device trains on in one pass."""

    @model_validator(mode="after")
    def _drawings_suffice(self) -> OmniglotData:
        if self.shots + self.queries > self.drawers:
            raise conflict(
                "queries",
                f"shots + queries is {self.shots + self.queries}, and a device has {self.drawers} "
                "drawings of a character (data.drawers)",
            )
        return self


class SyntheticData(RowData):
    """Random prototypes of 28 x 28 with noise: for timing, not for learning. Needs no file."""

    source: Literal["synthetic"] = "synthetic"
    """Where the data comes from."""
    support: int = Field(default=60, ge=1, le=100_000)
    """Examples that a device trains on."""
    query: int = Field(default=12, ge=1, le=100_000)
    """Examples that only judge."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Devices that never train."""


class LogisticData(RowData):
    """Synthetic(alpha, beta) (Li et al. 2020): 60 features, ten labels. Needs no file.

    Devices differ in their data and in the model that labels it.
    """

    source: Literal["logistic"] = "logistic"
    """Where the data comes from."""
    alpha: float = Field(default=0.5, ge=0.0, le=100.0)
    """How much the devices' true models differ."""
    beta: float = Field(default=0.5, ge=0.0, le=100.0)
    """How much their data do."""
    multiple: int = Field(default=1, ge=1, le=1000)
    """Rows are this many times those of the paper."""
    draw: int = Field(default=0, ge=0, le=2**32 - 1)
    """Which data are drawn; the scenario's seed does not change them."""
    query_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """The share of a device's examples that only judge and are never trained on."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Devices that never train and show how the model serves newcomers."""


class SinusoidData(RowData):
    """Sinusoids of amplitude 0.1 to 5 and phase 0 to pi (Finn et al. 2017). Needs no file.

    A device has one sinusoid, and learns it from a few points.
    """

    source: Literal["sinusoid"] = "sinusoid"
    """Where the data comes from."""
    shots: int = Field(default=10, ge=1, le=100_000)
    """Points that a device which never trains adapts to. A step takes algorithm.batch_size."""
    support: int = Field(default=100, ge=2, le=100_000)
    """Points that a device which trains draws from."""
    query: int = Field(default=100, ge=1, le=100_000)
    """Points that only judge."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Devices that never train."""
    oracle: bool = False
    """Give the model amplitude and phase: the bound of what meta-learning can reach."""


def learns_numbers(source: str, targets: str) -> bool:
    """Whether numbers are learnt from a data table with these keys, and not labels."""
    return source == "sinusoid" or targets == "numbers"


class ScriptData(Table):
    """Whatever your own training script reads: it trains, in any framework (docs/scripts.md)."""

    source: Literal["script"] = "script"
    """Where the data comes from."""
    path: str | None = None
    """The script, a Python file, relative to the scenario's folder. `--data` wins over it."""
    python: str = ""
    """The command that runs the script, such as another environment's Python. Empty: this Python.
    """
    arguments: tuple[str, ...] = Field(default=(), strict=False, max_length=100)
    """Arguments of the script."""
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Numbers and texts for the script, as `task.settings`."""
    metrics: tuple[str, ...] = Field(default=(), strict=False, max_length=16)
    """What it judges by besides loss and accuracy."""
    measure: Literal["accuracy", "loss"] = "accuracy"
    """What reports go by: the accuracy that the script says, or the loss."""
    examples_max: int = Field(default=10_000, ge=1, le=2**31)
    """A device counts for so many examples at most. The fewer, the finer the steps of the ring."""
    equal_weights: bool = False
    """Whether all devices have the same weight, however many examples they have."""
    process_each: bool = False
    """Whether each client has a process of its own, for scripts that load their data before their
    first task, by `client.site()`. Otherwise a few processes serve all clients.
    """
    executor: Literal["processes", "ray"] = "processes"
    """Where the script runs: in `processes` of this machine, or on a `ray` cluster, which
    RAY_ADDRESS names.
    """
    timeout_s: int = Field(default=3600, ge=1, le=604_800)
    """A script that answers no sooner has failed."""
    flops: float = Field(default=1e9, gt=0.0, le=1e18)
    """Operations of one training, which give its virtual time on a device."""


Data = Annotated[
    DigitsData
    | NpzData
    | TableData
    | SeriesData
    | ImagesData
    | StoredData
    | IdxData
    | Cifar10Data
    | FemnistData
    | HarData
    | OmniglotData
    | ShakespeareData
    | TextData
    | SyntheticData
    | LogisticData
    | SinusoidData
    | ScriptData,
    Field(discriminator="source"),
]


class MlpModel(Table):
    """Dense layers with relu between; hidden = [200, 200] is the 2NN of the FedAvg paper."""

    name: Literal["mlp"] = "mlp"
    """Which model."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        default=(64,), strict=False, max_length=16
    )
    """Units of each hidden layer; none: softmax regression."""
    batch_norm: bool = False
    """Whether hidden layers are normalised by the batch, as few-shot learners are."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class CnnModel(Table):
    """The convolutional network of the FedAvg paper: two 5 x 5 convolutions and 512 units."""

    name: Literal["cnn"] = "cnn"
    """Which model."""
    hidden: int = Field(default=512, ge=1, le=65_536)
    """Units of the dense layer; LEAF has 2048."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class OmniglotModel(Table):
    """The four-convolution few-shot network, with batch normalisation."""

    name: Literal["omniglot"] = "omniglot"
    """Which model."""
    filters: int = Field(default=64, ge=1, le=1024)
    """Channels of each convolution."""
    strided: bool = False
    """Whether convolutions have a stride in place of pooling after them: a quarter of the work."""


class LstmModel(Table):
    """The stacked character LSTM of the FedAvg paper."""

    name: Literal["lstm"] = "lstm"
    """Which model."""
    embedding: int = Field(default=8, ge=1, le=4096)
    """Size of a character's vector."""
    hidden: int = Field(default=64, ge=1, le=4096)
    """Units of each layer."""
    layers: int = Field(default=2, ge=1, le=8)
    """Layers on top of each other."""


class TransformerModel(Table):
    """A small transformer of characters or tokens: causal for the next one, else an encoder."""

    name: Literal["transformer"] = "transformer"
    """Which model."""
    width: int = Field(default=64, ge=2, le=8192, multiple_of=2)
    """Size of a token's vector; a multiple of `heads`."""
    depth: int = Field(default=2, ge=1, le=64)
    """Blocks on top of each other."""
    heads: int = Field(default=4, ge=1, le=256)
    """Heads of attention."""
    documents_apart: bool = False
    """Whether a token sees its own document alone, where documents follow one another in a row
    (`data.packing`). Its place is still that in the row.
    """

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            raise conflict(
                "heads", f"a width of {self.width} does not fall into {self.heads} heads"
            )
        return self


class PythonModel(Table):
    """Your own model: a function `init(key, shape, classes)` in a Python file.

    It returns a tree of f32 arrays that is called as `model(x)` or `model(x, weight)`.
    """

    name: Literal["python"] = "python"
    """Which model."""
    file: str
    """The Python file, relative to the scenario's folder. It is run."""
    function: str = "init"
    """The function in it."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class TorchModule(Table):
    """Your PyTorch module, as it stands: a class in a Python file (docs/models.md)."""

    name: Literal["torch"] = "torch"
    """Which model."""
    file: str
    """The Python file, relative to the scenario's folder. It is run."""
    module: str = ""
    """The class in it. Absent: the only torch.nn.Module there."""
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of its constructor."""
    loss: str = ""
    """What training lowers: a class of torch.nn, such as "SmoothL1Loss", or "FILE:CLASS" for one in
    a Python file, relative to the scenario's folder, which is run. It is called as
    `loss(outputs, targets)`, and gives one loss a row. Absent: cross-entropy of labels, the squared
    error of numbers.
    """
    loss_settings: dict[str, bool | int | float | str | list[float]] = Field(default_factory=dict)
    """Arguments of its constructor; a list of numbers is given as a tensor."""
    weights: str | None = None
    """A safetensors file with the first weights, relative to the scenario's folder. Absent: those
    that the constructor draws under the run's seed.
    """
    batch_norm: Literal["running", "batch"] = "running"
    """What batch normalisation takes in inference: running statistics, which are averaged with the
    parameters, or those of the batch.
    """
    inputs: Literal["numbers", "ids"] = "numbers"
    """What the module takes: numbers as they are, or ids of tokens, as int64. A data file's whole
    numbers are kept as f32 (below 2^24 exactly).
    """
    images: Literal["channels_first", "channels_last"] = "channels_first"
    """Axes of the images that the module takes: [N, C, H, W] or [N, H, W, C]."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class OnnxFile(Table):
    """A model in ONNX, from a file (docs/models.md)."""

    name: Literal["onnx"] = "onnx"
    """Which model."""
    file: str
    """The file, relative to the scenario's folder. Its tensors are the first weights."""
    inputs: Literal["numbers", "ids"] = "numbers"
    """What the module takes: numbers as they are, or ids of tokens, as int64. A data file's whole
    numbers are kept as f32 (below 2^24 exactly).
    """
    images: Literal["channels_first", "channels_last"] = "channels_first"
    """Axes of the images that the model takes: [N, C, H, W] or [N, H, W, C]."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class GivenModel(Table):
    """A model that a caller of `dl.simulate` brings as an object."""

    name: Literal["given"] = "given"
    """Which model."""
    kind: str = ""
    """The name of its class or function."""
    classes: int | None = Field(default=None, ge=2, le=65_536)
    """Number of classes. Absent: as many as the data has."""


class ScriptModel(Table):
    """The model of a training script: a file of its first weights."""

    name: Literal["script"] = "script"
    """Which model."""
    weights: str
    """The first weights by name, .safetensors or .npz, relative to the scenario's folder."""


Model = Annotated[
    MlpModel
    | CnnModel
    | OmniglotModel
    | LstmModel
    | TransformerModel
    | PythonModel
    | TorchModule
    | OnnxFile
    | GivenModel
    | ScriptModel,
    Field(discriminator="name"),
]
