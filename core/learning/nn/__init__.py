"""Layers, models and optimisers that run as plain NumPy and compile."""

from typing import TYPE_CHECKING

from ...common.lazy_exports import exported, lazily

if TYPE_CHECKING:
    from . import initialise as initialise
    from . import schedules as schedules
    from .decoders import *
    from .layers import *
    from .norms import *
    from .optim import *
    from .recurrent import *
    from .stacked_blocks import *
    from .token_models import *
    from .transformers import *
    from .zoo import *

_NAMES = {
    "initialise": "",
    "schedules": "",
    "decoders": "Decoder DecoderBlock GatedFeedForward GroupedAttention TiedHead decoder quantised",
    "layers": "AvgPool Conv ConvTranspose Dense DepthwiseConv Dropout Embedding Flatten "
    "Function GlobalAvgPool MaxPool Residual Sequential",
    "norms": "BatchNorm GroupNorm InstanceNorm LayerNorm RmsNorm RunningBatchNorm Statistics "
    "within",
    "optim": "Optimizer adagrad adam adamw add_noise apply chain clip_by_global_norm "
    "global_norm lamb lion momentum rmsprop scale scale_by_adam scale_by_lion "
    "scale_by_rms scale_by_schedule scale_by_sum_of_squares scale_by_yogi sgd "
    "trust_ratio weight_decay yogi",
    "recurrent": "GruCell LstmCell Recurrent RnnCell",
    "stacked_blocks": "Stacked stacked",
    "token_models": "TokenTransformer",
    "transformers": "MultiHeadAttention TransformerBlock sinusoids",
    "zoo": "CharLstm FedAvgCnn Mlp NormalisedMlp OmniglotNet SequenceModel Transformer "
    "char_model femnist_cnn lenet mobilenet_v2 resnet tagger transformer",
}
__getattr__, __dir__ = lazily(__name__, _NAMES)
__all__ = exported(_NAMES)
