"""Layers, models and optimisers, written in the NumPy vocabulary.

They run as plain Python and they compile.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazily

if TYPE_CHECKING:
    from . import initialise, schedules
    from .layers import (
        AvgPool,
        Conv,
        ConvTranspose,
        Dense,
        DepthwiseConv,
        Dropout,
        Embedding,
        Flatten,
        Function,
        GlobalAvgPool,
        MaxPool,
        Residual,
        Sequential,
    )
    from .norms import (
        BatchNorm,
        GroupNorm,
        InstanceNorm,
        LayerNorm,
        RmsNorm,
        RunningBatchNorm,
        Statistics,
        within,
    )
    from .optim import (
        Optimizer,
        adagrad,
        adam,
        adamw,
        add_noise,
        apply,
        chain,
        clip_by_global_norm,
        global_norm,
        lamb,
        lion,
        momentum,
        rmsprop,
        scale,
        scale_by_adam,
        scale_by_lion,
        scale_by_rms,
        scale_by_schedule,
        scale_by_sum_of_squares,
        scale_by_yogi,
        sgd,
        trust_ratio,
        weight_decay,
        yogi,
    )
    from .recurrent import GruCell, LstmCell, Recurrent, RnnCell
    from .transformers import MultiHeadAttention, TransformerBlock, sinusoids
    from .zoo import (
        CharLstm,
        FedAvgCnn,
        Mlp,
        NormalisedMlp,
        OmniglotNet,
        SequenceModel,
        Transformer,
        char_model,
        femnist_cnn,
        lenet,
        mobilenet_v2,
        resnet,
        tagger,
        transformer,
    )

__getattr__, __dir__ = lazily(
    __name__,
    {
        "initialise": "",
        "schedules": "",
        "layers": "AvgPool Conv ConvTranspose Dense DepthwiseConv Dropout Embedding Flatten "
        "Function GlobalAvgPool MaxPool Residual Sequential",
        "norms": "BatchNorm GroupNorm InstanceNorm LayerNorm RmsNorm RunningBatchNorm Statistics "
        "within",
        "optim": "Optimizer adagrad adam adamw add_noise apply chain clip_by_global_norm "
        "global_norm lamb lion momentum rmsprop scale scale_by_adam scale_by_lion "
        "scale_by_rms scale_by_schedule scale_by_sum_of_squares scale_by_yogi sgd "
        "trust_ratio weight_decay yogi",
        "recurrent": "GruCell LstmCell Recurrent RnnCell",
        "transformers": "MultiHeadAttention TransformerBlock sinusoids",
        "zoo": "CharLstm FedAvgCnn Mlp NormalisedMlp OmniglotNet SequenceModel Transformer "
        "char_model femnist_cnn lenet mobilenet_v2 resnet tagger transformer",
    },
)

__all__ = [
    "AvgPool",
    "BatchNorm",
    "CharLstm",
    "Conv",
    "ConvTranspose",
    "Dense",
    "DepthwiseConv",
    "Dropout",
    "Embedding",
    "FedAvgCnn",
    "Flatten",
    "Function",
    "GlobalAvgPool",
    "GroupNorm",
    "GruCell",
    "InstanceNorm",
    "LayerNorm",
    "LstmCell",
    "MaxPool",
    "Mlp",
    "MultiHeadAttention",
    "NormalisedMlp",
    "OmniglotNet",
    "Optimizer",
    "Recurrent",
    "Residual",
    "RmsNorm",
    "RnnCell",
    "RunningBatchNorm",
    "SequenceModel",
    "Sequential",
    "Statistics",
    "Transformer",
    "TransformerBlock",
    "adagrad",
    "adam",
    "adamw",
    "add_noise",
    "apply",
    "chain",
    "char_model",
    "clip_by_global_norm",
    "femnist_cnn",
    "global_norm",
    "initialise",
    "lamb",
    "lenet",
    "lion",
    "mobilenet_v2",
    "momentum",
    "resnet",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_schedule",
    "scale_by_sum_of_squares",
    "scale_by_yogi",
    "schedules",
    "sgd",
    "sinusoids",
    "tagger",
    "transformer",
    "trust_ratio",
    "weight_decay",
    "within",
    "yogi",
]
