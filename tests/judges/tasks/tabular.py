"""Networks for tables: numbers and categories in, a class or a number out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .task import Task, ids, mlp, numbers

NUMBERS, FIELDS, CARDINALITY, CLASSES = 6, 3, 5, 4


def _rows(rows, g):
    return (numbers(g, rows, NUMBERS),), ids(g, CLASSES, rows)


def _mixed(rows, g):
    return (numbers(g, rows, NUMBERS), ids(g, CARDINALITY, rows, FIELDS)), ids(g, CLASSES, rows)


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    """Martins and Astudillo 2016: the projection on the simplex, along the last axis."""
    falling = x.sort(-1, descending=True).values
    sums = falling.cumsum(-1) - 1
    place = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    inside = place * falling > sums
    count = inside.sum(-1, keepdim=True)
    threshold = sums.gather(-1, count - 1) / count.to(x.dtype)
    return torch.clamp(x - threshold, min=0)


class Tokens(nn.Module):
    """A token a column: numbers times a vector, categories by their embedding."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(NUMBERS, width) * 0.3)
        self.shift = nn.Parameter(torch.zeros(NUMBERS + FIELDS, width))
        self.table = nn.Embedding(FIELDS * CARDINALITY, width)
        self.start = nn.Parameter(torch.randn(1, 1, width))

    def forward(self, x, fields):
        offsets = torch.arange(FIELDS) * CARDINALITY
        tokens = torch.cat([x[..., None] * self.scale, self.table(fields + offsets)], 1)
        first = self.start.expand(x.shape[0], -1, -1)
        return torch.cat([first, tokens + self.shift], 1)


class Block(nn.Module):
    """A layer of a residual perceptron (Gorishniy et al. 2021, section 3.2)."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.outer(self.drop(F.relu(self.inner(self.norm(x)))))


def mlp_resnet() -> Task:
    body = nn.Sequential(
        nn.Linear(NUMBERS, 16),
        Block(16),
        Block(16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )
    return Task(body, _rows, F.cross_entropy)


class FtTransformer(nn.Module):
    """Gorishniy et al. 2021, section 3.3."""

    def __init__(self, width=16):
        super().__init__()
        self.tokens = Tokens(width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 32, 0.1, F.gelu, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, x, fields):
        return self.out(self.body(self.tokens(x, fields))[:, 0])


def ft_transformer() -> Task:
    return Task(FtTransformer(), _mixed, F.cross_entropy)


class Saint(nn.Module):
    """Somepalli et al. 2021: attention among columns, then among the rows of the batch."""

    def __init__(self, width=8):
        super().__init__()
        self.tokens = Tokens(width)
        whole = width * (1 + NUMBERS + FIELDS)
        self.columns = nn.MultiheadAttention(width, 2, batch_first=True)
        self.rows = nn.MultiheadAttention(whole, 2, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(whole)])
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x, fields):
        x = self.tokens(x, fields)
        x = self.norms[0](x + self.columns(x, x, x, need_weights=False)[0])
        flat = x.flatten(1).unsqueeze(0)
        flat = self.norms[1](flat + self.rows(flat, flat, flat, need_weights=False)[0])
        return self.out(flat.squeeze(0).view(x.shape)[:, 0])


def saint() -> Task:
    return Task(Saint(), _mixed, F.cross_entropy)


class TabNet(nn.Module):
    """Arik and Pfister 2021: masks over the columns by sparsemax, one a step."""

    def __init__(self, width=8, steps=3, relaxation=1.5):
        super().__init__()
        self.steps, self.width, self.relaxation = steps, width, relaxation
        self.norm = nn.BatchNorm1d(NUMBERS)
        self.shared = nn.Linear(NUMBERS, 4 * width, bias=False)
        self.own = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(2 * width), nn.Linear(2 * width, 4 * width))
            for _ in range(steps + 1)
        )
        self.choose = nn.ModuleList(
            nn.Sequential(nn.Linear(width, NUMBERS, bias=False), nn.BatchNorm1d(NUMBERS))
            for _ in range(steps)
        )
        self.out = nn.Linear(width, CLASSES, bias=False)

    def _features(self, x, step):
        shared = F.glu(self.shared(x))
        return (shared + F.glu(self.own[step](shared))) * 0.5**0.5

    def forward(self, x):
        x = self.norm(x)
        prior, total, entropy = torch.ones_like(x), 0.0, 0.0
        state = self._features(x, 0)[:, self.width :]
        for step in range(self.steps):
            mask = sparsemax(self.choose[step](state) * prior)
            prior = prior * (self.relaxation - mask)
            entropy = entropy - (mask * torch.log(mask + 1e-6)).sum(1).mean()
            made = self._features(x * mask, step + 1)
            total = total + F.relu(made[:, : self.width])
            state = made[:, self.width :]
        return self.out(total), entropy / self.steps


def tabnet() -> Task:
    def loss(outputs, labels):
        return F.cross_entropy(outputs[0], labels) + 1e-2 * outputs[1]

    return Task(TabNet(), _rows, loss)


class ObliviousTrees(nn.Module):
    """Popov et al. 2020 (NODE): soft trees with one split a level, features by sparsemax."""

    def __init__(self, inputs, trees=4, depth=3):
        super().__init__()
        self.trees, self.depth = trees, depth
        self.choice = nn.Parameter(torch.randn(inputs, trees, depth))
        self.threshold = nn.Parameter(torch.randn(trees, depth) * 0.3)
        self.log_heat = nn.Parameter(torch.zeros(trees, depth))
        self.leaves = nn.Parameter(torch.randn(trees, 2**depth, CLASSES))
        code = torch.tensor([[(leaf >> d) & 1 for leaf in range(2**depth)] for d in range(depth)])
        self.register_buffer("code", torch.stack([1 - code, code], 1).float())

    def forward(self, x):
        shares = sparsemax(self.choice.movedim(0, -1)).movedim(-1, 0)
        picked = torch.einsum("ni,itd->ntd", x, shares)
        heat = (picked - self.threshold) * torch.exp(-self.log_heat)
        bins = torch.stack([-heat, heat], -1)
        bins = torch.clamp(0.5 * bins + 0.5, 0, 1)
        weights = torch.einsum("ntdb,dbl->ntdl", bins, self.code).prod(2)
        return torch.einsum("ntl,tlc->nc", weights, self.leaves) / self.trees


class Node(nn.Module):
    """Two layers of trees: the second sees the first's answer as well."""

    def __init__(self):
        super().__init__()
        self.first, self.second = ObliviousTrees(NUMBERS), ObliviousTrees(NUMBERS + CLASSES)

    def forward(self, x):
        made = self.first(x)
        return (made + self.second(torch.cat([x, made], 1))) / 2


def node() -> Task:
    return Task(Node(), _rows, F.cross_entropy)


class Periodic(nn.Module):
    """Gorishniy et al. 2022: numbers by sines of learnt frequencies."""

    def __init__(self, count=4):
        super().__init__()
        self.frequency = nn.Parameter(torch.randn(NUMBERS, count))
        self.body = mlp(2 * NUMBERS * count, 32, 1)

    def forward(self, x):
        angle = 2 * torch.pi * self.frequency * x[..., None]
        return self.body(torch.cat([angle.sin(), angle.cos()], -1).flatten(1)).squeeze(1)


def periodic_mlp() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, NUMBERS),), numbers(g, rows)

    return Task(Periodic(), batch, F.huber_loss)


class Spline(nn.Module):
    """Liu et al. 2024 (KAN): a layer of B-splines on a fixed grid, one an edge."""

    def __init__(self, inputs, outputs, cells=5, order=3):
        super().__init__()
        step = 2.0 / cells
        knots = torch.arange(-order, cells + order + 1) * step - 1
        self.order = order
        self.register_buffer("knots", knots)
        self.base = nn.Parameter(torch.randn(outputs, inputs) * 0.3)
        self.spline = nn.Parameter(torch.randn(outputs, inputs, cells + order) * 0.1)

    def _bases(self, x):
        """Cox and de Boor's recursion."""
        x, t = x.unsqueeze(-1), self.knots
        b = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - t[: -(k + 1)]) / (t[k:-1] - t[: -(k + 1)]) * b[..., :-1]
            right = (t[k + 1 :] - x) / (t[k + 1 :] - t[1:-k]) * b[..., 1:]
            b = left + right
        return b

    def forward(self, x):
        return F.silu(x) @ self.base.T + torch.einsum("nib,oib->no", self._bases(x), self.spline)


def kan() -> Task:
    return Task(nn.Sequential(Spline(NUMBERS, 8), Spline(8, CLASSES)), _rows, F.cross_entropy)


def quantile_mlp() -> Task:
    """Three quantiles at once, by the pinball loss (Koenker and Bassett 1978)."""

    def batch(rows, g):
        return (numbers(g, rows, NUMBERS),), numbers(g, rows, 1)

    def loss(guess, y):
        level = torch.tensor([0.1, 0.5, 0.9], dtype=guess.dtype)
        error = y - guess
        return torch.maximum(level * error, (level - 1) * error).mean()

    body = nn.Sequential(nn.Linear(NUMBERS, 16), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(16, 3))
    return Task(body, batch, loss)


TASKS = {
    "mlp_resnet": mlp_resnet,
    "ft_transformer": ft_transformer,
    "saint": saint,
    "tabnet": tabnet,
    "node": node,
    "periodic_mlp": periodic_mlp,
    "kan": kan,
    "quantile_mlp": quantile_mlp,
}
