"""A scenario's algorithm: a choice among tables that know their own keys.

A key has the name of the algorithm's field that it sets (`core.learn`), so that `recipes` can hand
them on; where a scenario gives two keys for one thing, it is a property here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from .settings import Table

Rate = Annotated[float, Field(gt=0.0, le=100.0)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]
Steps = Annotated[int, Field(ge=1, le=10_000)]
LocalSteps = Annotated[int, Field(ge=0, le=10_000)]
Strength = Annotated[float, Field(ge=0.0, le=1e3)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
HeadLeaves = Annotated[int, Field(ge=1, le=64)]


class LocalTraining(Table):
    """What all algorithms share."""

    batch_size: int = Field(default=10, ge=1, le=65_536)
    """Examples in a local step (episodes bring their own size)."""
    learning_rate: Rate = 0.1
    """The device's learning rate (beta of MAML, where it is taken on the adapted model)."""
    momentum: Momentum = 0.0
    """The device's momentum; begins at zero each round."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """The device's optimiser; begins anew each round."""
    server_learning_rate: Rate = 1.0
    """How far the server goes along the mean update. 1 with sgd is plain averaging."""
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = "sgd"
    """The server's optimiser (FedOpt; momentum of 0.9 is FedAvgM)."""
    personal_steps: int = Field(default=5, ge=0, le=10_000)
    """Gradient steps that make a device's model personal. 0: it is judged as it is, such as the
    model that a device of Ditto or FedPer keeps.
    """

    #: What the shared model is, where no device uses it; empty where it is a model like any other.
    unused: ClassVar[str] = ""

    @property
    def label(self) -> str:
        """What people know it by."""
        name: str = self.name  # type: ignore[attr-defined]
        return name


class Passes(LocalTraining):
    """Algorithms that go over a device's data so many times."""

    epochs: Steps = 1
    """Passes over a device's data in a round."""
    local_steps: LocalSteps = 0
    """Steps a pass, however much data a device has. 0: as many as it has batches."""
    personal_learning_rate: Rate = 0.1
    """The learning rate of the personal steps."""


class FedAvg(Passes):
    """Federated averaging (McMahan et al. 2017), personal by fine-tuning."""

    name: Literal["fedavg"] = "fedavg"
    """Which algorithm."""


class FedSgd(LocalTraining):
    """Federated SGD: one gradient of all of a device's data in a round (McMahan et al. 2017); the
    step is `server_learning_rate`.
    """

    name: Literal["fedsgd"] = "fedsgd"
    """Which algorithm."""
    personal_learning_rate: Rate = 0.1
    """The learning rate of the personal steps."""


class FedProx(Passes):
    """FedAvg with a pull towards the global model (Li et al. 2020)."""

    name: Literal["fedprox"] = "fedprox"
    """Which algorithm."""
    proximal_mu: Strength = 0.01
    """Strength of the pull."""

    @property
    def proximal(self) -> float:
        """As the algorithm calls it."""
        return self.proximal_mu


class Scaffold(Passes):
    """SCAFFOLD: control variates against the drift of unlike devices (Karimireddy et al. 2020). It
    uploads twice the model.
    """

    name: Literal["scaffold"] = "scaffold"
    """Which algorithm."""

    @property
    def local_learning_rate(self) -> float:
        """As the algorithm calls it."""
        return self.learning_rate


class FedNova(Passes):
    """FedNova: updates a step, so that many steps count no more than few (Wang et al. 2020)."""

    name: Literal["fednova"] = "fednova"
    """Which algorithm."""


class FedDyn(Passes):
    """FedDyn: each device's loss is bent until its minimum is the shared one (Acar et al. 2021)."""

    name: Literal["feddyn"] = "feddyn"
    """Which algorithm."""
    alpha: Annotated[float, Field(gt=0.0, le=1e3)] = 0.01
    """Strength of the regulariser."""


class Ditto(Passes):
    """Ditto: a model of each device's own beside the shared one, held near it (Li et al. 2021)."""

    name: Literal["ditto"] = "ditto"
    """Which algorithm."""
    attraction: Strength = 0.1
    """How strongly it is held (lambda)."""


class PFedMe(Passes):
    """pFedMe: personal models by Moreau envelopes (Dinh et al. 2020); beta is
    `server_learning_rate`.
    """

    name: Literal["pfedme"] = "pfedme"
    """Which algorithm."""
    inner_steps: int = Field(default=5, ge=1, le=100)
    """Steps to a personal model on one batch (K)."""
    inner_learning_rate: Rate = 0.05
    """The rate of those steps."""
    penalty: Strength = 15.0
    """How strongly a personal model is held near the shared one (lambda)."""


class Apfl(Passes):
    """APFL: each device mixes the shared model with its own, and learns the mixture (Deng et al.
    2020).
    """

    name: Literal["apfl"] = "apfl"
    """Which algorithm."""
    share: Share = 0.5
    """The own model's share at first (alpha)."""
    share_learning_rate: Rate = 0.01
    """The rate at which that is learnt."""


class FedPer(Passes):
    """FedPer: a shared body under a head of each device's own (Arivazhagan et al. 2019)."""

    name: Literal["fedper"] = "fedper"
    """Which algorithm."""
    unused: ClassVar[str] = "the shared body under the head that was first drawn"
    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""


class FedRep(FedPer):
    """FedRep: a shared body under a head of each device's own, trained in turn (Collins et al.
    2021).
    """

    name: Literal["fedrep"] = "fedrep"  # type: ignore[assignment]
    """Which algorithm."""
    head_epochs: Steps = 1
    """Passes that train the head, before those that train the body."""


class FedBabu(Passes):
    """FedBABU: the head stays as it was drawn until the body is done (Oh et al. 2022)."""

    name: Literal["fedbabu"] = "fedbabu"
    """Which algorithm."""
    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""


class Ifca(Passes):
    """IFCA: several models, and each device trains the one that fits it (Ghosh et al. 2020)."""

    name: Literal["ifca"] = "ifca"
    """Which algorithm."""
    clusters: int = Field(default=2, ge=2, le=16)
    """How many models there are; an upload holds a place for each."""


class Reptile(LocalTraining):
    """Reptile (Nichol, Achiam, Schulman 2018); epsilon is `server_learning_rate`."""

    name: Literal["reptile"] = "reptile"
    """Which algorithm."""
    inner_steps: Steps = 5
    """Local steps in a round, however much data a device has (k)."""
    personal_learning_rate: Rate = 0.1
    """The learning rate of the personal steps."""


class MetaLearning(LocalTraining):
    """What MAML and its kin share; the personal steps are the inner steps."""

    epochs: Steps = 1
    """Passes over a device's data in a round."""
    local_steps: LocalSteps = 0
    """Steps a pass, however much data a device has. 0: as many as it has episodes."""
    inner_steps: int = Field(default=1, ge=1, le=100)
    """Steps of adaptation that the meta-gradient looks through."""
    inner_learning_rate: Rate = 0.1
    """The rate of adaptation (alpha); Meta-SGD starts from it and learns it."""
    adapt_share: Annotated[float, Field(ge=0.01, le=0.99)] = 0.5
    """The share of a device's rows that steps adapt on (the paper's p); the others judge them."""

    @property
    def personal_learning_rate(self) -> float:
        """A device adapts as the meta-gradient saw it adapt."""
        return self.inner_learning_rate


class Fomaml(MetaLearning):
    """First-order MAML in a federation (Finn et al. 2017; FedMeta, Chen et al. 2018)."""

    name: Literal["fomaml"] = "fomaml"
    """Which algorithm."""

    @property
    def first_order(self) -> bool:
        """What it is of MAML."""
        return True


class Maml(MetaLearning):
    """MAML with its exact second-order gradient (Finn et al. 2017; FedMeta, Chen et al. 2018)."""

    name: Literal["maml"] = "maml"
    """Which algorithm."""


class PerFedAvg(MetaLearning):
    """Per-FedAvg, Hessian-free: MAML with a difference of gradients for its second order (Fallah et
    al. 2020). Its first-order variant is fomaml with several passes.
    """

    name: Literal["perfedavg"] = "perfedavg"
    """Which algorithm."""
    delta: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """The length of that difference."""


class MetaSgd(MetaLearning):
    """Meta-SGD: learns a rate for each parameter as well (Li et al. 2017)."""

    name: Literal["metasgd"] = "metasgd"
    """Which algorithm."""


class Anil(MetaLearning):
    """ANIL: MAML that adapts the head alone (Raghu et al. 2020)."""

    name: Literal["anil"] = "anil"
    """Which algorithm."""
    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""


class ProtoNet(LocalTraining):
    """Prototypical networks: a class is the mean of its rows' features (Snell et al. 2017). The
    model's last layer must be a dense one; it is not learnt.
    """

    name: Literal["protonet"] = "protonet"
    """Which algorithm."""
    personal_steps: Steps = 5
    """Batches of the support set that prototypes are made of."""
    epochs: Steps = 1
    """Passes over a device's data in a round."""


class PythonAlgorithm(Passes):
    """Your own algorithm: a dataclass in a Python file that extends `dl.learn.Algorithm`, or one of
    the catalogue. Of what is not set here it has defaults of its own.
    """

    name: Literal["python"] = "python"
    """Which algorithm."""
    file: str
    """The Python file, relative to the scenario's folder. It is run."""
    kind: str = ""
    """The class in it. Empty: the only one that is an algorithm."""
    settings: dict[str, float | int | bool | str] = Field(default={}, max_length=32)
    """Fields of its own, by name."""

    @property
    def label(self) -> str:
        return self.kind or Path(self.file).stem


Algorithm = Annotated[
    FedAvg
    | FedSgd
    | FedProx
    | Scaffold
    | FedNova
    | FedDyn
    | Ditto
    | PFedMe
    | Apfl
    | FedPer
    | FedRep
    | FedBabu
    | Ifca
    | Reptile
    | Fomaml
    | Maml
    | PerFedAvg
    | MetaSgd
    | Anil
    | ProtoNet
    | PythonAlgorithm,
    Field(discriminator="name"),
]

#: The catalogue by name, without one's own.
ALGORITHMS: dict[str, type[LocalTraining]] = {
    kind.model_fields["name"].default: kind
    for kind in get_args(get_args(Algorithm)[0])
    if kind is not PythonAlgorithm
}
