"""Detectors of torchvision with shapes that are known: SSDLite and RetinaNet.

torchvision's detectors select boxes by their scores, and torch.export refuses that. So the network,
backbone and head, is imported, and what surrounds it is written here in NumPy's vocabulary: anchors
are constants, the targets of all anchors have one shape, and of the boxes there are as many places
as there may be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
import torch
from torch import nn

CLASSES, BOXES = 6, 4
"""Classes with the background; places for the boxes of an image."""


class Heads(nn.Module):
    """(logits [N, A, C], codes of boxes [N, A, 4]) of images."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = net.backbone, net.head

    def forward(self, images):
        found = self.head(list(self.backbone(images).values()))
        return found["cls_logits"], found["bbox_regression"]


class Reference(Heads):
    """torchvision's own loss of the same parameters."""

    def __init__(self, detector: Detector) -> None:
        super().__init__(detector.net)
        self.register_buffer("anchors", torch.from_numpy(detector.anchors))
        self.__dict__["net"] = detector.net  # not a part: its parameters are the heads'

    def forward(self, images, boxes, labels, matched):
        logits, codes = super().forward(images)
        targets = [
            {"boxes": b[k > 0], "labels": k[k > 0]} for b, k in zip(boxes, labels, strict=True)
        ]
        outputs = {"cls_logits": logits, "bbox_regression": codes}
        anchors = [self.anchors] * images.shape[0]
        losses = self.head if hasattr(self.head, "compute_loss") else self.net
        return sum(losses.compute_loss(targets, outputs, anchors, list(matched)).values())


def anchors_of(net: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """All anchors of an image of this size, [A, 4]."""
    from torchvision.models.detection.image_list import ImageList

    with torch.no_grad():
        features = list(net.backbone(images[:1]).values())
    given = ImageList(images[:1], [tuple(images.shape[-2:])])
    return net.anchor_generator(given, features)[0]


@dataclass(frozen=True)
class Detector(ABC):
    """A builder of torchvision, and what its loss and its boxes are here."""

    net: nn.Module
    size: int
    anchors: np.ndarray
    levels: tuple[int, ...]
    """How many anchors each feature map has."""
    forced = "none"
    """Which anchors are matched whatever their overlap, as `ops.match_anchors` names them."""

    def torchvision_found(self, logits: torch.Tensor, codes: torch.Tensor) -> list[dict]:
        """torchvision's own boxes, scores and labels of each image."""
        outputs, places = self.as_torchvision_has(logits, codes)
        sizes = [(self.size, self.size)] * len(logits)
        return self.net.postprocess_detections(outputs, [places] * len(logits), sizes)

    def as_torchvision_has(self, logits, codes) -> tuple[dict, Any]:
        outputs = {"cls_logits": logits, "bbox_regression": codes}
        return outputs, torch.from_numpy(self.anchors)

    @abstractmethod
    def loss(self, logits, codes, boxes, labels, matched) -> Any:
        """The detector's loss by Delian's functions."""

    @abstractmethod
    def found(self, logits, codes) -> Any:
        """Its boxes by Delian's functions."""


def _targets(anchors, boxes, labels, matched):
    """(which anchors have a box, that box [N, A, 4], its label); of others the anchor, and 0."""
    front = matched >= 0
    place = np.maximum(matched, 0)
    wanted = np.take_along_axis(boxes, place[..., None], axis=1)
    kinds = np.take_along_axis(labels, place, axis=1)
    return front, np.where(front[..., None], wanted, anchors), np.where(front, kinds, 0)


class SsdLite(Detector):
    """Liu et al. 2016, with the smooth L1 loss, hard negatives three to one, and softmax scores."""

    weights = (10.0, 10.0, 5.0, 5.0)
    forced = "best"

    def loss(self, logits, codes, boxes, labels, matched):
        front, wanted, kinds = _targets(self.anchors, boxes, labels, matched)
        far = dl.ops.huber(codes, dl.ops.encode_boxes(wanted, self.anchors, self.weights))
        of_boxes = np.sum(np.where(front[..., None], far, 0))
        of_kinds = dl.ops.cross_entropy(logits, kinds)
        hard = dl.ops.hard_negatives(of_kinds, front, 3.0)
        return (of_boxes + np.sum(np.where(front | hard, of_kinds, 0))) / np.maximum(
            np.sum(front), 1
        )

    def found(self, logits, codes):
        """(boxes [300, 4], scores, labels, how many there are) of an image's outputs."""
        boxes = dl.ops.decode_boxes(codes, self.anchors, self.weights)
        boxes = dl.ops.clip_boxes(boxes, self.size, self.size)
        scores = dl.ops.softmax(logits)[:, 1:].T
        best, places = dl.ops.top_k(scores, min(self.net.topk_candidates, scores.shape[1]))
        labels = np.repeat(np.arange(1, scores.shape[0] + 1), best.shape[1])
        return _kept(self.net, boxes[places.reshape(-1)], best.reshape(-1), labels)


class Retina(Detector):
    """Lin et al. 2017: the focal loss of each class, the L1 loss of codes."""

    forced = "ties"

    def as_torchvision_has(self, logits, codes):
        outputs, anchors = super().as_torchvision_has(logits, codes)
        by_level = {name: list(x.split(self.levels, 1)) for name, x in outputs.items()}
        return by_level, list(anchors.split(self.levels))

    def loss(self, logits, codes, boxes, labels, matched):
        front, wanted, kinds = _targets(self.anchors, boxes, labels, matched)
        count = np.maximum(np.sum(front, axis=1), 1)
        right = dl.ops.one_hot(np.where(front, kinds, -1), logits.shape[-1], logits.dtype)
        of_kinds = np.sum(dl.ops.sigmoid_focal(logits, right), axis=2)
        of_kinds = np.sum(np.where(matched == -2, 0, of_kinds), axis=1) / count
        far = np.abs(codes - dl.ops.encode_boxes(wanted, self.anchors))
        of_boxes = np.sum(np.where(front[..., None], far, 0), axis=(1, 2)) / count
        return np.mean(of_kinds + of_boxes)

    def found(self, logits, codes):
        boxes, scores, labels = [], [], []
        start = 0
        for count in self.levels:
            of_level = dl.ops.sigmoid(logits[start : start + count]).reshape(-1)
            best, places = dl.ops.top_k(of_level, min(self.net.topk_candidates, of_level.shape[0]))
            anchors = start + places // logits.shape[1]
            made = dl.ops.decode_boxes(codes[anchors], self.anchors[anchors])
            boxes.append(dl.ops.clip_boxes(made, self.size, self.size))
            scores.append(best)
            labels.append(places % logits.shape[1])
            start = start + count
        together = [np.concatenate(each) for each in (boxes, scores, labels)]
        return _kept(self.net, *together)


def _kept(net, boxes, scores, labels):
    kept = dl.ops.non_max_suppression(
        boxes,
        scores,
        net.nms_thresh,
        net.detections_per_img,
        labels,
        net.score_thresh,
    )
    there = np.maximum(kept, 0)
    return boxes[there], scores[there], labels[there], np.sum(kept >= 0)


def made(name: str) -> Detector:
    from model_table import torchvision_models

    torchvision_models()
    from torchvision.models import detection

    builder = getattr(detection, name)
    net = builder(weights=None, weights_backbone=None, num_classes=CLASSES)
    kind, size = (SsdLite, 320) if name.startswith("ssd") else (Retina, 128)
    images = torch.zeros(1, 3, size, size)
    features = list(net.eval().backbone(images).values())
    each = net.anchor_generator.num_anchors_per_location()
    levels = [f.shape[-1] * f.shape[-2] * n for f, n in zip(features, each, strict=True)]
    return kind(net, size, anchors_of(net, images).numpy(), tuple(levels))


def batch(detector: Detector, rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Images, boxes and labels (0 where there is none), and torchvision's match of each anchor."""
    from torchvision.ops import box_iou

    g = torch.Generator().manual_seed(seed)
    size = detector.size
    low = torch.rand(rows, BOXES, 2, generator=g) * size * 0.6
    sides = (0.1 + 0.3 * torch.rand(rows, BOXES, 2, generator=g)) * size
    boxes = torch.cat([low, low + sides], 2)
    labels = torch.randint(1, CLASSES, (rows, BOXES), generator=g)
    labels[:, BOXES - 1] = 0  # a place without a box
    anchors = torch.from_numpy(detector.anchors)
    matched = [
        detector.net.proposal_matcher(box_iou(b[k > 0], anchors))
        for b, k in zip(boxes, labels, strict=True)
    ]
    images = torch.randn(rows, 3, size, size, generator=g)
    return {
        "images": images,
        "boxes": boxes,
        "labels": labels,
        "matched": torch.stack(matched),
    }
