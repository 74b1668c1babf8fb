"""Rows a second of data pipelines: Delian next to Grain, torch's DataLoader and tf.data.

    python benchmarks/pipelines.py [--task digits|photos] [--seconds 60] [--threads 2] [--json]

Two tasks. `digits`: 60,000 u8 images of 28x28 in memory, shuffled, normalised to f32, in batches of
64. `photos`: JPEGs of 224x224, which this script makes, in a folder; shuffled, decoded to u8, in
batches of 32. A peer is measured in the forms that its users write, an example at a time and a
batch at a time, with and without workers; its best form counts. Every form first gives an epoch
that is checked: each label once, and the sum of the pixels. Then all take turns in one process, one
timed epoch each, cut off after `TURN_S`. Quoted are the most and the median of rows a second, and
the least processor time of a row, which other work on the machine changes least; the ratios are of
the best ones and of the medians. A peer that is not installed is left out. --json ends in
`targets`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROWS, BATCH = 60_000, 64
PHOTOS, PHOTO_BATCH, SIDE = 768, 32, 224
MEAN, DEVIATION = np.float32(0.1307), np.float32(0.3081)
TURN_S = 1.0
ROUNDS_MIN = 5
#: Delian's rows a second over those of the best peer.
GOAL = 1.0
#: Pixels may differ by the decoder's choice of transform: so much, on average.
PIXEL_TOLERANCE = 0.02

Epoch = Callable[[], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True)
class Task:
    name: str
    rows: int
    mean: float
    """Of all values of x."""
    forms: dict[str, Epoch]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- digits


def digits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (ROWS, 28, 28)).astype(np.uint8), np.arange(ROWS, dtype=np.int32)


def normalise(x: Any) -> Any:
    return (x.astype(np.float32) / np.float32(255) - MEAN) / DEVIATION


def delian_digits(x: np.ndarray, y: np.ndarray) -> dict[str, Epoch]:
    import delian as dl

    rows = dl.data.Pipeline((x, y)).shuffle().batch(BATCH)
    fused = rows.map(dl.compile(normalise), on="x")
    plain = rows.map(normalise, on="x")
    return {"delian": epochs(fused), "delian, NumPy's function": epochs(plain)}


def epochs(steps: Any) -> Epoch:
    """Another epoch each time: what an epoch before it has kept is of no use."""
    numbers = itertools.count()
    return lambda: steps.run(epoch=next(numbers))


def torch_digits(x: np.ndarray, y: np.ndarray, workers: int) -> dict[str, Epoch]:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    mean, deviation = float(MEAN), float(DEVIATION)

    class Digits(Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, k: Any) -> Any:
            return images[k].float().div_(255).sub_(mean).div_(deviation), labels[k]

    def batches() -> BatchSampler:
        return BatchSampler(RandomSampler(range(ROWS)), BATCH, False)

    forked = DataLoader(
        Digits(), None, sampler=batches(), num_workers=workers, persistent_workers=True
    )
    return {
        "torch, an example at a time": lambda: DataLoader(Digits(), BATCH, shuffle=True),
        "torch, a batch at a time": lambda: DataLoader(Digits(), None, sampler=batches()),
        "torch, a batch at a time, workers": lambda: forked,
    }


def tf_digits(x: np.ndarray, y: np.ndarray) -> dict[str, Epoch]:
    import tensorflow as tf

    auto, images, labels = tf.data.AUTOTUNE, tf.constant(x), tf.constant(y)

    def normal(a: Any, b: Any) -> Any:
        return (tf.cast(a, tf.float32) / 255.0 - float(MEAN)) / float(DEVIATION), b

    def gathered(k: Any) -> Any:
        return normal(tf.gather(images, k), tf.gather(labels, k))

    slices = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(BATCH)
    numbers = tf.data.Dataset.range(ROWS).shuffle(ROWS).batch(BATCH)
    forms = {
        "tf.data, slices": slices.map(normal, num_parallel_calls=auto).prefetch(auto),
        "tf.data, gather": numbers.map(gathered, num_parallel_calls=auto).prefetch(auto),
        "tf.data, gather, one thread": numbers.map(gathered).prefetch(2),
    }
    return {name: (lambda data=data: data.as_numpy_iterator()) for name, data in forms.items()}


def grain_digits(x: np.ndarray, y: np.ndarray) -> dict[str, Epoch]:
    import grain

    class Digits:
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, k: int) -> Any:
            return x[k], y[k]

    def normal(pair: Any) -> Any:
        return normalise(pair[0]), pair[1]

    rows = grain.MapDataset.source(Digits()).shuffle(seed=1)

    def gathered(numbers: Any) -> Any:
        return normalise(x[numbers]), y[numbers]

    numbers = grain.MapDataset.range(ROWS).shuffle(seed=1).batch(BATCH).map(gathered)
    once = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return {
        "grain, gather": lambda: numbers.to_iter_dataset(),
        "grain, gather, no threads": lambda: numbers.to_iter_dataset(once),
        "grain, an example at a time": lambda: rows.map(normal).batch(BATCH).to_iter_dataset(),
        "grain, a batch at a time": lambda: rows.batch(BATCH).map(normal).to_iter_dataset(),
        "grain, a batch at a time, no threads": lambda: (
            rows.batch(BATCH).map(normal).to_iter_dataset(once)
        ),
    }


# ---------------------------------------------------------------- photos


def write_photos(folder: Path) -> float:
    """Makes them; gives the mean of all decoded pixels."""
    import io

    from PIL import Image

    rng, total = np.random.default_rng(0), 0.0
    for k in range(PHOTOS):
        coarse = rng.integers(0, 256, (14, 14, 3)).astype(np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        noisy = smooth.astype(np.int16) + rng.integers(-12, 13, smooth.shape)
        stream = io.BytesIO()
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        # A class a photo, so that a label says which one it was.
        (folder / f"{k:04}").mkdir()
        (folder / f"{k:04}" / "photo.jpg").write_bytes(stream.getvalue())
        total += float(np.asarray(Image.open(stream)).mean())
    return total / PHOTOS


def paths_of(folder: Path) -> list[str]:
    return [str(folder / f"{k:04}" / "photo.jpg") for k in range(PHOTOS)]


def delian_photos(folder: Path, threads: int) -> dict[str, Epoch]:
    import delian as dl

    rows = dl.data.Pipeline(folder).shuffle().batch(PHOTO_BATCH)
    forms = {
        "delian": epochs(rows.prefetch(4 * threads, threads=threads)),
        "delian, processes": epochs(rows.prefetch(4 * threads, processes=threads)),
    }
    packed = folder.parent / "photos.npz"
    dl.data.pack(dl.data.open_rows(folder), packed)
    window = dl.data.Pipeline(packed).shuffle(window=256, block=8).batch(PHOTO_BATCH)
    return {**forms, "delian, packed": epochs(window.prefetch(2, threads=1))}


def decoders() -> dict[str, Callable[[str], np.ndarray]]:
    """What users of torch and Grain decode with."""
    from PIL import Image

    found: dict[str, Callable[[str], np.ndarray]] = {
        "Pillow": lambda path: np.asarray(Image.open(path).convert("RGB"))
    }
    try:
        import simplejpeg

        found["simplejpeg"] = lambda path: simplejpeg.decode_jpeg(Path(path).read_bytes())
    except ImportError:
        say("simplejpeg is not installed: Delian and its peers decode with Pillow")
    return found


def torch_photos(folder: Path, threads: int) -> dict[str, Epoch]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    paths = paths_of(folder)

    class Photos(Dataset):
        def __init__(self, decode: Callable[[str], np.ndarray]) -> None:
            self.decode = decode

        def __len__(self) -> int:
            return PHOTOS

        def __getitem__(self, k: int) -> Any:
            return torch.from_numpy(self.decode(paths[k]).copy()), k

    forms: dict[str, Epoch] = {}
    for name, decode in decoders().items():
        forked = DataLoader(
            Photos(decode), PHOTO_BATCH, True, num_workers=threads, persistent_workers=True
        )
        forms[f"torch, {name}"] = lambda decode=decode: DataLoader(
            Photos(decode), PHOTO_BATCH, shuffle=True
        )
        forms[f"torch, {name}, workers"] = lambda forked=forked: forked
    return forms


def tf_photos(folder: Path) -> dict[str, Epoch]:
    import tensorflow as tf

    auto, forms = tf.data.AUTOTUNE, {}
    data = tf.data.Dataset.from_tensor_slices((paths_of(folder), np.arange(PHOTOS)))
    for name, method in (("", ""), (", fast transform", "INTEGER_FAST")):

        def decode(path: Any, label: Any, method: str = method) -> Any:
            return tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method=method), label

        mapped = data.shuffle(PHOTOS).map(decode, num_parallel_calls=auto)
        forms[f"tf.data{name}"] = mapped.batch(PHOTO_BATCH).prefetch(auto)
    return {name: (lambda data=data: data.as_numpy_iterator()) for name, data in forms.items()}


def grain_photos(folder: Path, threads: int) -> dict[str, Epoch]:
    import grain

    forms: dict[str, Epoch] = {}
    pairs = list(zip(paths_of(folder), range(PHOTOS), strict=True))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * PHOTO_BATCH)
    for name, decode in decoders().items():
        rows = grain.MapDataset.source(pairs).shuffle(seed=1)
        read = rows.map(lambda pair, decode=decode: (decode(pair[0]), pair[1]))
        forms[f"grain, {name}"] = lambda read=read: read.to_iter_dataset(options).batch(PHOTO_BATCH)
        forms[f"grain, {name}, its threads"] = lambda read=read: read.to_iter_dataset().batch(
            PHOTO_BATCH
        )
    return forms


# ---------------------------------------------------------------- measuring


def gathered(makers: Iterable[Callable[[], dict[str, Epoch]]]) -> dict[str, Epoch]:
    """The forms of what is installed."""
    forms: dict[str, Epoch] = {}
    for make in makers:
        try:
            forms.update(make())
        except ImportError as error:
            say(f"left out: {error}")
    return forms


def check(task: Task, name: str) -> str:
    """What is wrong with an epoch of a form; empty: nothing. Also starts its workers."""
    total, labels = 0.0, []
    for x, y in task.forms[name]():
        array = np.asarray(x)
        total += float(array.mean(dtype=np.float64)) * len(array)
        labels.append(np.asarray(y))
    seen = np.sort(np.concatenate(labels))
    if not np.array_equal(seen, np.arange(task.rows)):
        return f"{len(seen)} labels, not each of {task.rows} once"
    mean = total / task.rows
    scale = max(1.0, abs(task.mean))
    return "" if abs(mean - task.mean) <= PIXEL_TOLERANCE * scale else f"mean {mean}"


def turn(epoch: Epoch) -> tuple[float, float]:
    """Rows a second of one epoch, or as much of it as fits the turn; processor seconds a row."""
    start, used, rows = time.perf_counter(), time.process_time(), 0
    for _, y in epoch():
        rows += len(y)
        if time.perf_counter() - start > TURN_S:
            break
    return rows / (time.perf_counter() - start), (time.process_time() - used) / rows


def measure(task: Task, seconds: float) -> dict[str, Any]:
    wrong = {name: fault for name in task.forms if (fault := check(task, name))}
    forms = {name: epoch for name, epoch in task.forms.items() if name not in wrong}
    for name, fault in wrong.items():
        say(f"{task.name}, {name}: WRONG: {fault}")
    say(f"{task.name}: measuring {len(forms)} forms")
    found: dict[str, list[float]] = {name: [] for name in forms}
    used: dict[str, list[float]] = {name: [] for name in forms}
    loads, end = [], time.perf_counter() + seconds
    while len(loads) < ROUNDS_MIN or time.perf_counter() < end:
        for name, epoch in forms.items():
            speed, processor = turn(epoch)
            found[name].append(speed)
            used[name].append(processor * 1e6)
        loads.append(os.getloadavg()[0])
    most = {name: max(values) for name, values in found.items()}
    middle = {name: statistics.median(values) for name, values in found.items()}
    least = {name: min(values) for name, values in used.items() if not _forks(name)}
    best = _best_peer(most)
    usual = _best_peer(middle)
    frugal = min((n for n in least if not _ours(n)), key=lambda name: least[name], default="")
    return {
        "task": task.name,
        "rounds": len(loads),
        "load": {"least": min(loads), "median": statistics.median(loads), "most": max(loads)},
        "rows_s_most": most,
        "rows_s_median": middle,
        "processor_us_a_row_least": least,
        "wrong": wrong,
        "best_peer": best,
        "of_best_peer": most["delian"] / most[best] if best and "delian" in most else None,
        "best_peer_by_median": usual,
        "of_best_peer_by_median": middle["delian"] / middle[usual] if usual else None,
        "most_frugal_peer": frugal,
        "times_as_frugal": least[frugal] / least["delian"] if frugal else None,
    }


def _ours(name: str) -> bool:
    return name.startswith("delian")


def _best_peer(speeds: dict[str, float]) -> str:
    return max((n for n in speeds if not _ours(n)), key=lambda name: speeds[name], default="")


def _forks(name: str) -> bool:
    """Whether other processes do the work: this one's processor time says little."""
    return name.endswith(("workers", "processes"))


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{row['task']}: rows a second, Delian / the best of its peers",
            "goal": GOAL,
            "measured": row["of_best_peer"],
            "met": row["of_best_peer"] is not None and row["of_best_peer"] >= GOAL,
        }
        for row in rows
    ]


def shown(row: dict[str, Any]) -> str:
    load = row["load"]
    lines = [
        f"\n{row['task']}: {row['rounds']} rounds, load {load['least']:.1f} to {load['most']:.1f}"
        f" (median {load['median']:.1f})",
        "| form | rows a second, most | median | processor µs a row, least |",
        "|---|---|---|---|",
    ]
    for name, value in sorted(row["rows_s_most"].items(), key=lambda pair: -pair[1]):
        used = row["processor_us_a_row_least"].get(name)
        cells = [name, f"{value:,.0f}", f"{row['rows_s_median'][name]:,.0f}"]
        lines.append(f"| {' | '.join(cells)} | {'' if used is None else f'{used:.1f}'} |")
    if row["of_best_peer"] is not None:
        lines += [
            f"Delian / {row['best_peer']}: {row['of_best_peer']:.2f}",
            f"by medians, / {row['best_peer_by_median']}: {row['of_best_peer_by_median']:.2f}",
            f"processor time of {row['most_frugal_peer']} / Delian: {row['times_as_frugal']:.2f}",
        ]
    return "\n".join(lines)


def tasks(wanted: list[str], folder: Path, threads: int) -> Iterable[Task]:
    # torch comes first: it forks its workers in the check, before TensorFlow has started threads.
    if "digits" in wanted:
        x, y = digits()
        forms = gathered(
            [
                lambda: torch_digits(x, y, threads),
                lambda: delian_digits(x, y),
                lambda: tf_digits(x, y),
                lambda: grain_digits(x, y),
            ]
        )
        yield Task("digits", ROWS, float(normalise(x).mean(dtype=np.float64)), forms)
    if "photos" in wanted:
        photos = folder / "photos"
        photos.mkdir()
        mean = write_photos(photos)
        forms = gathered(
            [
                lambda: torch_photos(photos, threads),
                lambda: delian_photos(photos, threads),
                lambda: tf_photos(photos),
                lambda: grain_photos(photos, threads),
            ]
        )
        yield Task("photos", PHOTOS, mean, forms)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("digits", "photos"), action="append")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring a task")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks(options.task or ["digits", "photos"], Path(folder), options.threads):
            row = measure(task, options.seconds)
            rows.append(row)
            if not options.json:
                print(shown(row), flush=True)
    if options.json:
        report = {
            "machine": platform.processor() or platform.machine(),
            "processors": os.cpu_count(),
            "threads": options.threads,
            "tasks": rows,
            "targets": targets(rows),
        }
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
