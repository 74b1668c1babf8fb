"""What NumPy lacks for learning: convolution, pooling, attention, losses. Public as `delian.ops`.

Every function takes and gives NumPy arrays and runs eagerly; inside a compiled function the same
source is inlined, so both give the same numbers and all have derivatives of any order. The few
that are primitives of the IR (`primitives`) run eagerly by their reference rule. Images are
[N, H, W, C], sequences [N, T, C], kernels [space..., inputs, outputs]. Random functions take a key.
"""

from .activations import (
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    log_softmax,
    logsumexp,
    mish,
    relu,
    relu6,
    selu,
    silu,
    softmax,
    softplus,
    softsign,
)
from .aligning import ctc
from .attending import attention, causal_mask
from .convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    depthwise_conv2d,
)
from .dropping import dropout
from .gathering import (
    embedding,
    one_hot,
    segment_max,
    segment_mean,
    segment_sum,
    top_k,
)
from .losses import (
    absolute_error,
    binary_cross_entropy,
    cosine_similarity,
    cross_entropy,
    hinge,
    huber,
    kl_divergence,
    nll,
    squared_error,
    triplet,
)
from .pooling import (
    adaptive_avg_pool,
    avg_pool,
    global_avg_pool,
    global_max_pool,
    lp_pool,
    max_pool,
)
from .primitives import (
    conv,
    conv_input_grad,
    dynamic_slice,
    dynamic_update,
    erf,
    put_add,
    sigmoid,
    stop_gradient,
)
from .resizing import resize

__all__ = [
    "absolute_error",
    "adaptive_avg_pool",
    "attention",
    "avg_pool",
    "binary_cross_entropy",
    "causal_mask",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_input_grad",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_similarity",
    "cross_entropy",
    "ctc",
    "depthwise_conv2d",
    "dropout",
    "dynamic_slice",
    "dynamic_update",
    "elu",
    "embedding",
    "erf",
    "gelu",
    "global_avg_pool",
    "global_max_pool",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hinge",
    "huber",
    "kl_divergence",
    "leaky_relu",
    "log_softmax",
    "logsumexp",
    "lp_pool",
    "max_pool",
    "mish",
    "nll",
    "one_hot",
    "put_add",
    "relu",
    "relu6",
    "resize",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "squared_error",
    "stop_gradient",
    "top_k",
    "triplet",
]
