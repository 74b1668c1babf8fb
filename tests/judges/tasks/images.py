"""Segmentation, and other networks over images, points and graphs."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from .task import Task, flags, ids, mlp, numbers

CLASSES = 5


def _labelled(size):
    def batch(rows, g):
        return (numbers(g, rows, 3, size, size),), ids(g, CLASSES, rows, size, size)

    return batch


def torchvision_segmentation(name: str, size: int) -> Task:
    """A builder of torchvision, with its auxiliary head where it has one."""
    from model_table import torchvision_models

    models = torchvision_models()
    more = {} if name.startswith("lraspp") else {"aux_loss": True}
    module = models.get_model(name, num_classes=CLASSES, weights_backbone=None, **more)

    def loss(found, labels):
        total = F.cross_entropy(found["out"], labels, ignore_index=0)
        if "aux" in found:
            total = total + 0.5 * F.cross_entropy(found["aux"], labels, ignore_index=0)
        return total

    return Task(module, _labelled(size), loss)


def _twice(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Ronneberger et al. 2015, with padding; up by a transposed or a bilinear step."""

    def __init__(self, width=8, bilinear=False):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _twice(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        self.rise = nn.ModuleList(
            nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
                nn.Conv2d(2 * size, size, 1),
            )
            if bilinear
            else nn.ConvTranspose2d(2 * size, size, 2, 2)
            for size in (2 * width, width)
        )
        self.up = nn.ModuleList(_twice(2 * size, size) for size in (2 * width, width))
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        skips = []
        for k, down in enumerate(self.down):
            x = down(x if k == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for rise, up, skip in zip(self.rise, self.up, skips[-2::-1], strict=True):
            x = up(torch.cat([skip, rise(x)], 1))
        return self.out(x)


def _dice(scores, labels):
    """Cross-entropy plus one less the soft Dice coefficient (Milletari et al. 2016)."""
    share = torch.softmax(scores, 1)
    target = F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).to(share)
    both = 2 * (share * target).sum((0, 2, 3)) + 1
    dice = both / ((share + target).sum((0, 2, 3)) + 1)
    return F.cross_entropy(scores, labels) + 1 - dice.mean()


def unet() -> Task:
    return Task(UNet(), _labelled(32), _dice)


def unet_bilinear() -> Task:
    return Task(UNet(bilinear=True), _labelled(32), _dice)


class Mixer(nn.Module):
    """Tolstikhin et al. 2021: perceptrons over patches and over channels, in turn."""

    def __init__(self, width=16, patches=16):
        super().__init__()
        self.join = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        across = [nn.Sequential(nn.Linear(patches, 8), nn.GELU(), nn.Linear(8, patches))]
        within = [nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))]
        self.across, self.within = nn.ModuleList(across * 2), nn.ModuleList(within * 2)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.join(x).flatten(2).transpose(1, 2)
        for k in range(2):
            x = x + self.across[k](self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.within[k](self.norms[2 * k + 1](x))
        return self.out(self.norms[4](x).mean(1))


def _classified(rows, g):
    return (numbers(g, rows, 3, 16, 16),), ids(g, CLASSES, rows)


def mlp_mixer() -> Task:
    return Task(Mixer(), _classified, F.cross_entropy)


class Siamese(nn.Module):
    """Hadsell et al. 2006: one network for both images of a pair."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.Flatten(), nn.Linear(72, 6)
        )

    def forward(self, left, right):
        return F.pairwise_distance(self.body(left), self.body(right))


def siamese() -> Task:
    def batch(rows, g):
        pair = numbers(g, rows, 3, 16, 16), numbers(g, rows, 3, 16, 16)
        return pair, flags(g, rows)

    def loss(far, same):
        return (same * far**2 + (1 - same) * F.relu(2.0 - far) ** 2).mean()

    return Task(Siamese(), batch, loss)


def triplet() -> Task:
    """Schroff et al. 2015 with embeddings of length one."""

    class Triplet(Siamese):
        def forward(self, anchor, same, other):
            return tuple(F.normalize(self.body(x)) for x in (anchor, same, other))

    def batch(rows, g):
        return tuple(numbers(g, rows, 3, 16, 16) for _ in range(3)), None

    return Task(Triplet(), batch, lambda found: F.triplet_margin_loss(*found, margin=0.5))


class SimClr(Siamese):
    """Chen et al. 2020, equation 1: each view finds the other among all of the batch."""

    def forward(self, left, right):
        z = F.normalize(torch.cat([self.body(left), self.body(right)]), dim=1)
        itself = torch.eye(z.shape[0], dtype=torch.bool)
        return (z @ z.T / 0.5).masked_fill(itself, float("-inf"))


def simclr() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 3, 16, 16), numbers(g, rows, 3, 16, 16)), None

    def loss(scores):
        rows = scores.shape[0] // 2
        other = torch.arange(2 * rows).roll(rows)
        return F.cross_entropy(scores, other)

    return Task(SimClr(), batch, loss)


class Graph(nn.Module):
    """Kipf and Welling 2017 over dense adjacency [N, nodes, nodes]."""

    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, CLASSES)

    def forward(self, nodes, links):
        own = links + torch.eye(links.shape[1], dtype=links.dtype)
        root = own.sum(2).rsqrt()
        spread = root.unsqueeze(2) * own * root.unsqueeze(1)
        for layer in self.layers:
            nodes = F.relu(spread @ layer(nodes))
        return self.out(nodes.amax(1))


def _graphs(rows, g):
    links = flags(g, rows, 7, 7)
    links = torch.maximum(links, links.transpose(1, 2))
    return (numbers(g, rows, 7, 4), links), ids(g, CLASSES, rows)


def gcn() -> Task:
    return Task(Graph(), _graphs, F.cross_entropy)


class GraphAttention(nn.Module):
    """Velickovic et al. 2018: attention among neighbours alone."""

    def __init__(self, width=6, heads=2):
        super().__init__()
        self.heads = heads
        self.join = nn.Linear(4, heads * width, bias=False)
        self.left = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.right = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.out = nn.Linear(heads * width, CLASSES)

    def forward(self, nodes, links):
        h = self.join(nodes).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        left = torch.einsum("nhvw,hw->nhv", h, self.left)
        right = torch.einsum("nhvw,hw->nhv", h, self.right)
        score = F.leaky_relu(left.unsqueeze(3) + right.unsqueeze(2), 0.2)
        near = (links > 0) | torch.eye(links.shape[1], dtype=torch.bool)
        score = torch.where(near.unsqueeze(1), score, torch.finfo(score.dtype).min)
        made = torch.softmax(score, -1) @ h
        return self.out(F.elu(made.transpose(1, 2).flatten(2)).mean(1))


def gat() -> Task:
    return Task(GraphAttention(), _graphs, F.cross_entropy)


class MessagePassing(nn.Module):
    """Gilmer et al. 2017 over lists of links, summed by index_add and its mean by scatter."""

    def __init__(self, width=8):
        super().__init__()
        self.message, self.update = mlp(8, 16, width), nn.GRUCell(width, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, nodes, sources, targets):
        for _ in range(2):
            sent = self.message(torch.cat([nodes[sources], nodes[targets]], 1))
            total = torch.zeros(nodes.shape[0], sent.shape[1], dtype=sent.dtype)
            total = total.index_add(0, targets, sent)
            count = torch.zeros(nodes.shape[0], dtype=sent.dtype)
            count = count.scatter_add(0, targets, torch.ones_like(targets, dtype=sent.dtype))
            nodes = self.update(total / count.clamp(min=1).unsqueeze(1), nodes)
        return self.out(nodes).squeeze(1)


def message_passing() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 4), ids(g, rows, rows), ids(g, rows, rows)), numbers(g, rows)

    return Task(MessagePassing(), batch, F.mse_loss)


class PointNet(nn.Module):
    """Qi et al. 2017: points by a shared network, turned by one of their own, and the largest."""

    def __init__(self, width=16):
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU())
        self.matrix = nn.Linear(width, 9)
        self.body = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, 32, 1)
        )
        self.out = mlp(32, 16, CLASSES)

    def forward(self, points):
        eye = torch.eye(3, dtype=points.dtype).flatten()
        matrix = (self.matrix(self.turn(points).amax(2)) + eye).view(-1, 3, 3)
        turned = torch.bmm(matrix, points)
        found = F.adaptive_max_pool1d(self.body(turned), 1).squeeze(2)
        return F.log_softmax(self.out(found), 1), matrix


def pointnet() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 3, 20),), ids(g, CLASSES, rows)

    def loss(found, labels):
        scores, matrix = found
        eye = torch.eye(3, dtype=matrix.dtype)
        straight = (matrix @ matrix.transpose(1, 2) - eye).norm(dim=(1, 2)).mean()
        return F.nll_loss(scores, labels) + 1e-3 * straight

    return Task(PointNet(), batch, loss)


class RadianceField(nn.Module):
    """Mildenhall et al. 2020: colours of rays, composed along their samples."""

    def __init__(self, waves=4):
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(waves))
        self.body = mlp(3 + 6 * waves, 24, 24, 4)

    def forward(self, origin, direction):
        depth = torch.linspace(0.5, 2.5, 9, dtype=origin.dtype)
        points = origin.unsqueeze(1) + direction.unsqueeze(1) * depth[:-1, None]
        angle = (points.unsqueeze(-1) * self.waves).flatten(2)
        made = self.body(torch.cat([points, angle.sin(), angle.cos()], -1))
        opaque = 1 - torch.exp(-F.relu(made[..., 3]) * depth.diff())
        clear = torch.cumprod(1 - opaque + 1e-10, 1)
        clear = torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1)
        return ((opaque * clear).unsqueeze(-1) * torch.sigmoid(made[..., :3])).sum(1)


def radiance_field() -> Task:
    def batch(rows, g):
        inputs = numbers(g, rows, 3), F.normalize(numbers(g, rows, 3))
        return inputs, torch.rand(rows, 3, generator=g)

    return Task(RadianceField(), batch, F.mse_loss)


class KeyPoints(nn.Module):
    """Heat maps, and the mean of each as a place (Sun et al. 2018)."""

    def __init__(self, points=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 5, 2, 2),
            nn.Hardswish(),
            nn.Conv2d(8, 16, 1),
            nn.PixelShuffle(2),
            nn.Conv2d(4, points, 1),
        )

    def forward(self, x):
        heat = self.body(x)
        share = torch.softmax(heat.flatten(2), -1).view(heat.shape)
        place = torch.linspace(-1, 1, heat.shape[-1], dtype=heat.dtype)
        return torch.stack([(share.sum(2) * place).sum(2), (share.sum(3) * place).sum(2)], -1)


def key_points() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 3, 16, 16),), torch.rand(rows, 3, 2, generator=g) * 2 - 1

    return Task(KeyPoints(), batch, F.l1_loss)


TASKS = {
    "deeplabv3_resnet50": partial(torchvision_segmentation, "deeplabv3_resnet50", 64),
    "deeplabv3_mobilenet_v3_large": partial(
        torchvision_segmentation, "deeplabv3_mobilenet_v3_large", 64
    ),
    "fcn_resnet50": partial(torchvision_segmentation, "fcn_resnet50", 64),
    "lraspp_mobilenet_v3_large": partial(torchvision_segmentation, "lraspp_mobilenet_v3_large", 64),
    "unet": unet,
    "unet_bilinear": unet_bilinear,
    "mlp_mixer": mlp_mixer,
    "siamese": siamese,
    "triplet": triplet,
    "simclr": simclr,
    "gcn": gcn,
    "gat": gat,
    "message_passing": message_passing,
    "pointnet": pointnet,
    "radiance_field": radiance_field,
    "key_points": key_points,
}
