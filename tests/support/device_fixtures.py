"""A small bundle, its files by digest, and data that it fits: what tests of the agent need."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Algorithm, Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.nn import Mlp, sgd
from delian.core.protocol.ports import RunProgram
from delian.core.wire.round_pb2 import RingPlan

CAPACITY, FEATURES, CLASSES = 24, 4, 3


@dataclass(frozen=True)
class Blobs:
    """A folder of blobs as the agent's store keeps them, and those that a task names."""

    folder: Path
    bundle: bytes
    weights: bytes
    made: Bundle
    frozen: tuple[bytes, ...] = ()

    def path(self, digest: bytes) -> Path:
        return self.folder / digest.hex()

    def keep(self, content: bytes) -> bytes:
        digest = hashlib.sha256(content).digest()
        self.path(digest).write_bytes(content)
        return digest

    def program(self, name: str = "client_update", ticket: int = 1) -> RunProgram:
        manifest = self.made.manifest
        ring = RingPlan(
            clip=manifest.clip,
            clients_max=manifest.clients_max,
            bits=32,
            dimension=manifest.dimension,
        )
        if name == "evaluate":
            ring = RingPlan(clip=96.0, clients_max=8, bits=32, dimension=4)
        key = np.array([1, 2], np.uint32)
        return RunProgram(ticket, name, (self.bundle, self.weights, *self.frozen), (key, ring))


def make_bundle(
    algorithm: Algorithm | None = None,
    *,
    batch: int = 4,
    epochs: int = 1,
    windows: bool = False,
    roles: Roles | None = None,
) -> Bundle:
    task = Classification(
        "small", lambda key: Mlp.init(key, FEATURES, (16,), CLASSES), Samples(batch, 1.0)
    )
    rows = SampleSet(
        np.zeros((CAPACITY, FEATURES), np.float32),
        np.zeros(CAPACITY, np.int32),
        np.array(8),
        np.array(3),
    )
    return build(
        task,
        algorithm or FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=4, epochs=epochs),
        rows,
        example=TensorType(DType.F32, (2, FEATURES)),
        clip=5.0,
        clients_max=8,
        weight_max=float(CAPACITY),
        seed=1,
        windows=windows,
        roles=roles,
    )


@pytest.fixture(scope="session")
def small_bundle() -> Bundle:
    return make_bundle()


@pytest.fixture
def make_small_bundle() -> Callable[[Algorithm], Bundle]:
    """The small bundle under another algorithm."""
    return make_bundle


@pytest.fixture
def blobs(small_bundle: Bundle, tmp_path: Path) -> Blobs:
    folder = tmp_path / "blobs"
    folder.mkdir()
    return blobs_of(folder, small_bundle)


def blobs_of(folder: Path, made: Bundle) -> Blobs:
    empty = Blobs(folder, b"", b"", made)
    bundle = empty.keep(made.bare().to_bytes())
    weights = empty.keep(made.weights.tobytes())
    frozen = tuple(empty.keep(part) for part in made.frozen_contents())
    return Blobs(folder, bundle, weights, made, frozen)


@pytest.fixture
def hungry(blobs: Blobs) -> Blobs:
    """A verified program whose batches of a million rows take a few hundred MiB."""
    return blobs_of(blobs.folder, make_bundle(batch=1 << 20))


@pytest.fixture
def endless(blobs: Blobs) -> Blobs:
    """A verified program that goes over the data a thousand million times."""
    return blobs_of(blobs.folder, make_bundle(epochs=10**9))


def rows_of(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a small model can learn: each class around a point of its own."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % CLASSES
    centres = np.eye(CLASSES, FEATURES) * 3
    return (centres[y] + rng.normal(0, 0.3, (count, FEATURES))).astype(np.float32), y


@pytest.fixture
def npz_file(tmp_path: Path) -> Path:
    x, y = rows_of(20)
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y.astype(np.int32))
    return path
