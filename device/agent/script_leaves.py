"""In the training process: the answer of the owner's script as the programs' data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.learning.runtime import Runtime
from ...core.learning.scripts.script_data import data_of, odd
from ...core.node.sandbox.worker_serving import JobStopped, say
from ...core.wire.round_pb2 import PROGRAM_FAILED

Array = NDArray[Any]


def script_leaves(
    runtime: Runtime, state: Array, given: Mapping[str, Any] | None, weights: bytes
) -> list[Array]:
    """The programs' data.

    Args:
        runtime: of a script's bundle.
        state: the weights that the script received, f32[D].
        given: its answer; None: it was not asked yet.
        weights: those that it sent, f32[D] as bytes; empty: none.

    Raises:
        JobStopped: the script has to answer first.
    """
    manifest = runtime.manifest
    if given is None:
        raise JobStopped(
            PROGRAM_FAILED,
            f"the script {manifest.script.get('name')} trains for this bundle",
            script=dict(manifest.script),
            leaves=[[leaf.name, list(leaf.shape)] for leaf in manifest.state],
        )
    examples, loss, judged = float(given["examples"]), float(given["loss"]), list(given["judged"])
    trained = np.frombuffer(weights, "<f4") if weights else None
    if trained is not None:
        for what in odd(manifest, state, trained, examples):
            say(what)
    return data_of(runtime, state, trained, examples, loss, judged)
