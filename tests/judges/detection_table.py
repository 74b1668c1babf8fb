"""torchvision's SSDLite and RetinaNet with shapes that are known: training step and inference.

    python tests/judges/detection_table.py [--only NAME] [--json]

Targets: the match of each anchor by dl.ops.match_anchors is torchvision's. Training: the loss of
the same targets is torchvision's compute_loss, and so is one step of SGD, as in model_table.py, on
two rows and on three. Inference: outputs of the network are PyTorch's; of the same outputs, boxes,
scores and labels are those of torchvision's postprocess_detections, whose nms, an operator that a
CPU build of torch does not load, is written here in NumPy.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from functools import partial

import numpy as np
from model_table import RATE, TOLERANCE, best_of

NAMES = ("ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn")
#: Rows of the batch that is the example, and of another one.
ROWS, OTHER_ROWS = 2, 3
#: How far an edge of a box may be from torchvision's.
PIXELS = 1e-3


def nms(boxes, scores, threshold):
    """torchvision's operator, on the CPU: greedily, by falling scores."""
    import torch

    b, falling = boxes.numpy(), np.argsort(-scores.numpy(), kind="stable")
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    alive, kept = np.ones(len(b), bool), []
    for k in falling:
        if not alive[k]:
            continue
        kept.append(k)
        low, high = np.maximum(b[:, :2], b[k, :2]), np.minimum(b[:, 2:], b[k, 2:])
        both = np.prod(np.maximum(high - low, 0), axis=1)
        with np.errstate(all="ignore"):
            alive &= ~((both / (area + area[k] - both)).astype(np.float64) > threshold)
        alive[k] = False
    return torch.tensor(np.array(kept, np.int64))


def step_of_sgd(detector):
    import delian as dl

    def loss(model, arrays):
        images, boxes, labels, matched = arrays
        (logits, codes), statistics = model.in_training((images,))
        return detector.loss(logits, codes, boxes, labels, matched), statistics

    @dl.compile(threads=1)
    def step(model, arrays):
        (value, statistics), slope = dl.value_and_grad(loss, has_aux=True)(model, arrays)
        after = dl.tree.map(lambda p, g: p - np.float32(RATE) * g, model, slope)
        return after.with_statistics(statistics), slope, value

    return step


def matches_differ(detector, inputs) -> int:
    """Anchors for which match_anchors gives another box than torchvision's matcher."""
    import delian as dl

    matcher = detector.net.proposal_matcher

    def matched(boxes, labels, anchors):
        overlaps = dl.ops.box_iou(boxes, anchors)
        high, low = matcher.high_threshold, matcher.low_threshold
        return dl.ops.match_anchors(overlaps, labels > 0, high, low, detector.forced)

    boxes, labels = inputs["boxes"].numpy(), inputs["labels"].numpy()
    run = dl.compile(dl.vmap(matched, in_axes=(0, 0, None)))
    return int(np.sum(run(boxes, labels, detector.anchors) != inputs["matched"].numpy()))


def trained(detector, model) -> dict:
    """Errors of the loss and of a step, for the example's number of rows and for another."""
    from tasks.detection import Reference, batch

    step, reference = step_of_sgd(detector), Reference(detector)
    return {
        f"rows {rows}": best_of(step, model, reference, partial(batch, detector, rows))
        for rows in (ROWS, OTHER_ROWS)
    }


def inference_errors(heads, model, images) -> tuple[float, float]:
    """The outputs' largest difference from PyTorch's in f64, and that of PyTorch in f32."""
    import delian as dl
    import torch

    got = dl.compile(threads=1)(called)(model, images.numpy())
    with torch.no_grad():
        single = copy.deepcopy(heads).eval()(images)
        wide = copy.deepcopy(heads).eval().double()(images.double())
    pairs = [list(zip(outputs, wide, strict=True)) for outputs in (got, single)]
    ours, theirs = (
        max(
            float(np.abs(np.asarray(o, np.float64) - w.numpy()).max() / w.abs().max()) for o, w in p
        )
        for p in pairs
    )
    return ours, theirs


def called(model, images):
    return model(images)


def detections_differ(detector, found, logits, codes) -> float:
    """The largest difference of boxes and scores from torchvision's; infinite for others."""
    import torch
    from torchvision.ops import boxes as torchvision_boxes

    torchvision_boxes.nms = nms
    boxes, scores, labels, counts = found
    want = detector.torchvision_found(torch.from_numpy(logits), torch.from_numpy(codes))
    gap = 0.0
    for k, one in enumerate(want):
        n = int(counts[k])
        theirs = {name: value.numpy() for name, value in one.items()}
        if n != len(theirs["labels"]) or (labels[k][:n] != theirs["labels"]).any():
            return float("inf")
        gap = max(gap, float(np.abs(boxes[k][:n] - theirs["boxes"]).max(initial=0)))
        gap = max(gap, float(np.abs(scores[k][:n] - theirs["scores"]).max(initial=0)))
    return gap


def suppressed(detector, model, images) -> dict:
    """Detections of drawn outputs, and of images by one program; both against torchvision's.

    Scores of random weights lie close together: the program makes the logits' deviation 2.
    """
    import delian as dl
    from tasks.detection import CLASSES

    rng = np.random.default_rng(3)
    logits = rng.normal(-1, 2, (ROWS, len(detector.anchors), CLASSES)).astype(np.float32)
    codes = rng.normal(size=(ROWS, len(detector.anchors), 4)).astype(np.float32)

    def drawn(logits, codes):
        return dl.vmap(detector.found)(logits, codes)

    def whole(model, images):
        logits, codes = model(images)
        logits = 2 * (logits - np.mean(logits)) / np.std(logits)
        return dl.vmap(detector.found)(logits, codes), (logits, codes)

    found = dl.compile(threads=1)(drawn)(logits, codes)
    of_images, outputs = dl.compile(threads=1)(whole)(model, images.numpy())
    return {
        "detections": found[3].tolist(),
        "detections_error": detections_differ(detector, found, logits, codes),
        "detections of images": of_images[3].tolist(),
        "images_error": detections_differ(detector, of_images, *outputs),
    }


def judged(name: str) -> dict:
    import delian as dl
    import torch
    from tasks.detection import Heads, batch, made

    torch.manual_seed(0)
    detector = made(name)
    heads, example = Heads(detector.net), batch(detector, ROWS, 1)
    model = dl.from_torch(heads, (example["images"],))
    other = batch(detector, OTHER_ROWS, 7)
    row = {"anchors": len(detector.anchors), "matches that differ": matches_differ(detector, other)}
    row |= suppressed(detector, model, other["images"])
    row["inference"], own = inference_errors(heads, model, other["images"])
    row |= trained(detector, model)
    good = row["matches that differ"] == 0 and row["inference"] <= TOLERANCE + 3 * own
    good = good and max(row["detections_error"], row["images_error"]) <= PIXELS
    good = good and all(row[f"rows {n}"]["verdict"] == "equal" for n in (ROWS, OTHER_ROWS))
    return {**row, "verdict": "equal" if good else "wrong"}


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = {}
    for name in NAMES:
        if options.only in name:
            rows[name] = judged(name)
            if not options.json:
                print(name, json.dumps(rows[name]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))
    return 1 if any(row["verdict"] != "equal" for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
