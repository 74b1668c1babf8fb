"""Recommenders: users, items and fields of categories by their ids; clicks, ratings, next items."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .task import Task, flags, ids, mlp, numbers

USERS, ITEMS, FIELDS, NUMBERS = 50, 80, 6, 4
CARDINALITY = 20
"""Categories of each field."""


def _pairs(rows, g):
    return (ids(g, USERS, rows), ids(g, ITEMS, rows)), flags(g, rows)


def _fields(rows, g):
    return (ids(g, CARDINALITY, rows, FIELDS),), flags(g, rows)


def _mixed(rows, g):
    return (numbers(g, rows, NUMBERS), ids(g, CARDINALITY, rows, FIELDS)), flags(g, rows)


class Factorisation(nn.Module):
    """Koren et al. 2009: rating = mean + biases + product of factors."""

    def __init__(self, width=8):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, user, item):
        product = (self.user(user) * self.item(item)).sum(-1)
        biases = self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)
        return self.mean + biases + product


def matrix_factorisation() -> Task:
    def batch(rows, g):
        return (ids(g, USERS, rows), ids(g, ITEMS, rows)), ids(g, 5, rows).float() + 1

    return Task(Factorisation(), batch, F.mse_loss)


class Bpr(nn.Module):
    """Rendle et al. 2009: the score of an item that was chosen, less one's that was not."""

    def __init__(self, width=8):
        super().__init__()
        self.user = nn.Embedding(USERS, width)
        self.item = nn.Embedding(ITEMS, width, padding_idx=0)

    def forward(self, user, chosen, other):
        return torch.einsum("nd,nd->n", self.user(user), self.item(chosen) - self.item(other))


def bpr() -> Task:
    def batch(rows, g):
        return (ids(g, USERS, rows), ids(g, ITEMS, rows), ids(g, ITEMS, rows)), None

    return Task(Bpr(), batch, lambda margin: -F.logsigmoid(margin).mean())


class NeuMf(nn.Module):
    """He et al. 2017, section 3.4: products of factors and a perceptron, joined at the end."""

    def __init__(self, width=8):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.deep_user, self.deep_item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.deep = nn.Sequential(mlp(2 * width, 32, 16), nn.ReLU(), nn.Dropout(0.2))
        self.out = nn.Linear(width + 16, 1)

    def forward(self, user, item):
        shallow = self.user(user) * self.item(item)
        deep = self.deep(torch.cat([self.deep_user(user), self.deep_item(item)], -1))
        return self.out(torch.cat([shallow, deep], -1)).squeeze(-1)


def neumf() -> Task:
    return Task(NeuMf(), _pairs, F.binary_cross_entropy_with_logits)


class TwoTower(nn.Module):
    """Yi et al. 2019: similarities of all users and items of a batch."""

    def __init__(self, width=8):
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(USERS, width), mlp(width, 16, width))
        self.item = nn.Sequential(nn.Embedding(ITEMS, width), mlp(width, 16, width))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, user, item):
        left = F.normalize(self.user(user), dim=-1)
        right = F.normalize(self.item(item), dim=-1)
        return left @ right.T * self.log_scale.exp()


def two_tower() -> Task:
    def batch(rows, g):
        return (ids(g, USERS, rows), ids(g, ITEMS, rows)), None

    def loss(scores):
        return F.cross_entropy(scores, torch.arange(scores.shape[0]))

    return Task(TwoTower(), batch, loss)


class Offsets(nn.Module):
    """Ids of several fields in one table: each field has its part of the rows."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(FIELDS * CARDINALITY, width)
        self.register_buffer("offsets", torch.arange(FIELDS) * CARDINALITY)

    def forward(self, fields):
        return self.table(fields + self.offsets)


class WideAndDeep(nn.Module):
    """Cheng et al. 2016: a linear model of crossed categories, and a perceptron."""

    def __init__(self, width=8):
        super().__init__()
        self.wide = nn.EmbeddingBag(CARDINALITY * CARDINALITY, 1, mode="sum")
        self.fields = Offsets(width)
        self.deep = mlp(NUMBERS + FIELDS * width, 32, 16, 1)

    def forward(self, x, fields):
        crossed = fields[:, :-1] * CARDINALITY + fields[:, 1:]
        deep = self.deep(torch.cat([x, self.fields(fields).flatten(1)], 1))
        return (self.wide(crossed) + deep).squeeze(1)


def wide_and_deep() -> Task:
    return Task(WideAndDeep(), _mixed, F.binary_cross_entropy_with_logits)


class DeepFm(nn.Module):
    """Guo et al. 2017: a factorisation machine and a perceptron of the same embeddings."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.second = Offsets(1), Offsets(width)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, fields):
        v = self.second(fields)
        pairs = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1)
        return self.first(fields).sum((1, 2)) + pairs + self.deep(v.flatten(1)).squeeze(1)


def deepfm() -> Task:
    return Task(DeepFm(), _fields, F.binary_cross_entropy_with_logits)


class Dlrm(nn.Module):
    """Naumov et al. 2019: products of all pairs of embeddings, by the indices of a triangle."""

    def __init__(self, width=8):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(CARDINALITY, width, mode="mean") for _ in range(FIELDS)
        )
        self.bottom = nn.Sequential(mlp(NUMBERS, 16, width), nn.ReLU())
        self.top = mlp(width + (FIELDS + 1) * FIELDS // 2, 16, 1)

    def forward(self, x, bags):
        x = self.bottom(x)
        rows = [table(bags[:, k]) for k, table in enumerate(self.tables)]
        stacked = torch.stack([x, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)
        return torch.sigmoid(self.top(torch.cat([x, products[:, i, j]], 1))).squeeze(1)


def dlrm() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, NUMBERS), ids(g, CARDINALITY, rows, FIELDS, 3)), flags(g, rows)

    return Task(Dlrm(), batch, F.binary_cross_entropy)


class AutoInt(nn.Module):
    """Song et al. 2019: fields that attend to one another."""

    def __init__(self, width=8):
        super().__init__()
        self.fields = Offsets(width)
        self.attend = nn.ModuleList(
            nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2)
        )
        self.residual = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.out = nn.Linear(FIELDS * width, 1)

    def forward(self, fields):
        x = self.fields(fields)
        for attend, residual in zip(self.attend, self.residual, strict=True):
            x = torch.relu(attend(x, x, x)[0] + residual(x))
        return self.out(x.flatten(1)).squeeze(1)


def autoint() -> Task:
    return Task(AutoInt(), _fields, F.binary_cross_entropy_with_logits)


class CrossNetwork(nn.Module):
    """Wang et al. 2021 (DCN-V2): crosses by a mixture of experts of low rank (section 3.3)."""

    def __init__(self, width=8, rank=4, experts=2):
        super().__init__()
        size = NUMBERS + FIELDS * width
        self.fields = Offsets(width)
        self.down = nn.Parameter(torch.randn(2, experts, size, rank) * 0.1)
        self.up = nn.Parameter(torch.randn(2, experts, rank, size) * 0.1)
        self.bias = nn.Parameter(torch.zeros(2, size))
        self.gates = nn.ModuleList(nn.Linear(size, experts) for _ in range(2))
        self.out = nn.Linear(size, 1)

    def forward(self, x, fields):
        first = torch.cat([x, self.fields(fields).flatten(1)], 1)
        x = first
        for k, gate in enumerate(self.gates):
            low = torch.tanh(torch.einsum("ni,eir->ner", x, self.down[k]))
            made = torch.einsum("ner,ero->neo", low, self.up[k]) + self.bias[k]
            share = torch.softmax(gate(x), -1)
            x = first * torch.einsum("ne,neo->no", share, made) + x
        return self.out(x).squeeze(1)


def dcn_v2() -> Task:
    return Task(CrossNetwork(), _mixed, F.binary_cross_entropy_with_logits)


class Experts(nn.Module):
    """Ma et al. 2018 (MMoE): two tasks, a gate each over shared experts."""

    def __init__(self, width=8, experts=3):
        super().__init__()
        size = NUMBERS + FIELDS * width
        self.fields = Offsets(width)
        self.experts = nn.ModuleList(mlp(size, 16, 8) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(size, experts) for _ in range(2))
        self.towers = nn.ModuleList(mlp(8, 8, 1) for _ in range(2))

    def forward(self, x, fields):
        x = torch.cat([x, self.fields(fields).flatten(1)], 1)
        made = torch.stack([expert(x) for expert in self.experts], 1)
        shares = [torch.softmax(gate(x), 1).unsqueeze(1) for gate in self.gates]
        rows = [
            tower((share @ made).squeeze(1))
            for tower, share in zip(self.towers, shares, strict=True)
        ]
        return torch.cat(rows, 1)


def mmoe() -> Task:
    def batch(rows, g):
        inputs, _ = _mixed(rows, g)
        return inputs, flags(g, rows, 2)

    return Task(Experts(), batch, F.binary_cross_entropy_with_logits)


class Interest(nn.Module):
    """Zhou et al. 2018 (DIN): items of a history weighted by the candidate, padding left out."""

    def __init__(self, width=8):
        super().__init__()
        self.item = nn.Embedding(ITEMS, width, padding_idx=0)
        self.weigh = nn.Sequential(nn.Linear(4 * width, 16), nn.PReLU(), nn.Linear(16, 1))
        self.out = mlp(2 * width, 16, 2)

    def forward(self, history, item):
        past, wanted = self.item(history), self.item(item)
        wide = wanted.unsqueeze(1).expand_as(past)
        score = self.weigh(torch.cat([past, wide, past - wide, past * wide], -1))
        score = score.masked_fill((history == 0).unsqueeze(-1), 0.0)
        return self.out(torch.cat([(score * past).sum(1), wanted], 1))


def din() -> Task:
    def batch(rows, g):
        history = ids(g, ITEMS, rows, 7)
        history[:, 4:] = 0
        return (history, ids(g, ITEMS, rows)), ids(g, 2, rows)

    return Task(Interest(), batch, F.cross_entropy)


class SasRec(nn.Module):
    """Kang and McAuley 2018: causal attention over items, scored by their own embeddings."""

    def __init__(self, length=10, width=16):
        super().__init__()
        self.item = nn.Embedding(ITEMS, width, padding_idx=0)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, items):
        length = items.shape[1]
        x = self.item(items) * self.item.embedding_dim**0.5 + self.place(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length).to(x)
        x = self.norm(self.body(x, mask=mask, is_causal=True))
        return x @ self.item.weight.T


def sasrec() -> Task:
    def batch(rows, g):
        items = ids(g, ITEMS - 1, rows, 11) + 1
        items[:, :3] = 0
        return (items[:, :-1],), items[:, 1:]

    def loss(scores, following):
        return F.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=0)

    return Task(SasRec(), batch, loss)


class GruRec(nn.Module):
    """Hidasi et al. 2016: the last state of a session scores the items of the batch."""

    def __init__(self, width=12):
        super().__init__()
        self.item = nn.Embedding(ITEMS, width)
        self.body = nn.GRU(width, width, batch_first=True)

    def forward(self, session, target):
        _, state = self.body(self.item(session))
        return state[-1] @ self.item(target).T


def gru4rec() -> Task:
    def batch(rows, g):
        return (ids(g, ITEMS, rows, 6), ids(g, ITEMS, rows)), None

    def loss(scores):
        """TOP1 (section 3.2.2): the diagonal has the items that were chosen."""
        others = torch.sigmoid(scores - scores.diagonal().unsqueeze(1))
        return (others + torch.sigmoid(scores**2)).mean()

    return Task(GruRec(), batch, loss)


TASKS = {
    "matrix_factorisation": matrix_factorisation,
    "bpr": bpr,
    "neumf": neumf,
    "two_tower": two_tower,
    "wide_and_deep": wide_and_deep,
    "deepfm": deepfm,
    "dlrm": dlrm,
    "autoint": autoint,
    "dcn_v2": dcn_v2,
    "mmoe": mmoe,
    "din": din,
    "sasrec": sasrec,
    "gru4rec": gru4rec,
}
