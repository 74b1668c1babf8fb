"""Networks for sequences: signals, time series, text and speech."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .task import Task, ids, mlp, numbers

CHANNELS, LENGTH, CLASSES, SYMBOLS = 3, 24, 4, 30


def _signals(rows, g):
    return (numbers(g, rows, CHANNELS, LENGTH),), ids(g, CLASSES, rows)


def _text(rows, g):
    text = ids(g, SYMBOLS, rows, 13)
    return (text[:, :-1],), text[:, 1:]


def _next_symbol(scores, following):
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


class GruClassifier(nn.Module):
    """Two layers of GRU over a signal's steps."""

    def __init__(self, width=12):
        super().__init__()
        self.body = nn.GRU(CHANNELS, width, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.out(self.body(x.transpose(1, 2))[0][:, -1])


def gru() -> Task:
    return Task(GruClassifier(), _signals, F.cross_entropy)


class LanguageModel(nn.Module):
    """LSTM with a projection; the output layer shares the embedding."""

    def __init__(self, width=12):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, width)
        self.body = nn.LSTM(width, 16, 2, batch_first=True, proj_size=width)
        self.out = nn.Linear(width, SYMBOLS)
        self.out.weight = self.table.weight

    def forward(self, text):
        return self.out(self.body(self.table(text))[0])


def lstm() -> Task:
    return Task(LanguageModel(), _text, _next_symbol)


class Tagger(nn.Module):
    """A bidirectional LSTM; tags of padding do not count."""

    def __init__(self, width=10):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, width, padding_idx=0)
        self.body = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, CLASSES)

    def forward(self, text):
        return self.out(self.body(self.table(text))[0])


def lstm_tagger() -> Task:
    def batch(rows, g):
        text = ids(g, SYMBOLS - 1, rows, 12) + 1
        text[:, 9:] = 0
        return (text,), ids(g, CLASSES, rows, 12).masked_fill(text == 0, -100)

    def loss(scores, tags):
        return F.cross_entropy(scores.transpose(1, 2), tags, label_smoothing=0.1)

    return Task(Tagger(), batch, loss)


class Crf(nn.Module):
    """A linear chain over emissions (Lafferty et al. 2001): -log p(tags) by the forward sum."""

    def __init__(self, width=10):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, width)
        self.body = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, CLASSES)
        self.moves = nn.Parameter(torch.randn(CLASSES, CLASSES) * 0.1)

    def forward(self, text, tags):
        scores = self.out(self.body(self.table(text))[0])
        chosen = scores.gather(2, tags.unsqueeze(2)).sum((1, 2))
        chosen = chosen + self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = scores[:, 0]
        for t in range(1, text.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.moves, 1) + scores[:, t]
        return torch.logsumexp(alpha, 1) - chosen


def crf_tagger() -> Task:
    def batch(rows, g):
        return (ids(g, SYMBOLS, rows, 8), ids(g, CLASSES, rows, 8)), None

    return Task(Crf(), batch, torch.mean)


class Causal(nn.Module):
    """Two dilated causal convolutions with a shortcut (Bai et al. 2018, section 3.4)."""

    def __init__(self, before, after, dilation):
        super().__init__()
        self.edge = 2 * dilation
        norm = nn.utils.parametrizations.weight_norm
        self.first = norm(nn.Conv1d(before, after, 3, padding=self.edge, dilation=dilation))
        self.second = norm(nn.Conv1d(after, after, 3, padding=self.edge, dilation=dilation))
        self.short = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x):
        made = F.relu(self.first(x)[..., : -self.edge])
        made = F.relu(self.second(made)[..., : -self.edge])
        return F.relu(made + self.short(x))


class Tcn(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(
            Causal(CHANNELS, width, 1), Causal(width, width, 2), Causal(width, width, 4)
        )
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.out(self.body(x)[..., -1])


def tcn() -> Task:
    return Task(Tcn(), _signals, F.cross_entropy)


class Residual(nn.Module):
    """A block of a ResNet for signals, with squeeze and excitation."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(before, after, 7, stride, 3, bias=False),
            nn.BatchNorm1d(after),
            nn.ReLU(),
            nn.Conv1d(after, after, 5, padding=2, bias=False),
            nn.BatchNorm1d(after),
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool1d(1),
            nn.Conv1d(after, after // 2, 1),
            nn.ReLU(),
            nn.Conv1d(after // 2, after, 1),
            nn.Sigmoid(),
        )
        self.short = nn.Sequential(nn.Conv1d(before, after, 1, stride), nn.BatchNorm1d(after))

    def forward(self, x):
        made = self.body(x)
        return torch.relu(made * self.gate(made) + self.short(x))


def resnet1d() -> Task:
    body = nn.Sequential(
        Residual(CHANNELS, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveMaxPool1d(3),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )
    return Task(body, _signals, F.cross_entropy)


class WaveNet(nn.Module):
    """Van den Oord et al. 2016: gated dilated causal convolutions, sums of all skips."""

    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**k) for k in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**k) for k in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.adds = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.out = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, SYMBOLS, 1)
        )

    def forward(self, sound):
        x, total = self.table(sound).transpose(1, 2), 0
        parts = zip(self.filters, self.gates, self.skips, self.adds, strict=True)
        for k, (signal, gate, skip, add) in enumerate(parts):
            past = F.pad(x, (2**k, 0))
            made = torch.tanh(signal(past)) * torch.sigmoid(gate(past))
            total = total + skip(made)
            x = x + add(made)
        return self.out(total).transpose(1, 2)


def wavenet() -> Task:
    return Task(WaveNet(), _text, _next_symbol)


class ConformerBlock(nn.Module):
    """Gulati et al. 2020: half a feed-forward, attention, convolution, half a feed-forward."""

    def __init__(self, width=16):
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width)
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True, dropout=0.1)
        self.wide = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)

    def _convolved(self, x):
        x = F.glu(self.wide(x.transpose(1, 2)), 1)
        return self.narrow(F.silu(self.batch_norm(self.depth(x)))).transpose(1, 2)

    def forward(self, x):
        x = x + 0.5 * self.halves[0](x)
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        x = x + self._convolved(self.norms[1](x))
        return self.norms[2](x + 0.5 * self.halves[1](x))


class Conformer(nn.Module):
    """Spectrograms [N, T, mel] to scores of symbols a frame, four frames made one."""

    def __init__(self, width=16):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU()
        )
        self.join = nn.Linear(16, width)
        self.body = nn.Sequential(ConformerBlock(width), ConformerBlock(width))
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, sound):
        x = self.front(sound.unsqueeze(1)).transpose(1, 2).flatten(2)
        return self.out(self.body(self.join(x)))


def conformer() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 32, 16),), ids(g, SYMBOLS, rows, 8)

    return Task(Conformer(), batch, _next_symbol)


class CtcRecogniser(Conformer):
    """Log probabilities by frame, time first, as PyTorch's loss takes them."""

    def forward(self, sound):
        return F.log_softmax(super().forward(sound), -1).transpose(0, 1)


def conformer_ctc() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 32, 16),), ids(g, SYMBOLS - 1, rows, 3) + 1

    def loss(scores, labels):
        rows = labels.shape[0]
        frames = torch.full((rows,), 8, dtype=torch.long)
        lengths = torch.full((rows,), 3, dtype=torch.long)
        return F.ctc_loss(scores, labels, frames, lengths)

    return Task(CtcRecogniser(), batch, loss)


class Translator(nn.Module):
    """PyTorch's own encoder and decoder, padding masked."""

    def __init__(self, width=16):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, width)
        self.body = nn.Transformer(width, 2, 1, 1, 32, 0.1, batch_first=True)
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, source, before):
        ahead = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        x, y = self.table(source), self.table(before)
        made = self.body(
            x, y, tgt_mask=ahead.to(x), tgt_is_causal=True, src_key_padding_mask=source == 0
        )
        return self.out(made)


def translator() -> Task:
    def batch(rows, g):
        source, target = ids(g, SYMBOLS - 1, rows, 9) + 1, ids(g, SYMBOLS, rows, 8)
        source[:, 7:] = 0
        return (source, target[:, :-1]), target[:, 1:]

    return Task(Translator(), batch, _next_symbol)


class DeepAr(nn.Module):
    """Salinas et al. 2020: mean and deviation of the next value, series scaled by their mean."""

    def __init__(self, width=10):
        super().__init__()
        self.series = nn.Embedding(8, 4)
        self.body = nn.LSTM(5, width, batch_first=True)
        self.mean, self.deviation = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, past, series):
        scale = 1 + past.abs().mean(1, keepdim=True)
        known = self.series(series).unsqueeze(1).expand(-1, past.shape[1], -1)
        state = self.body(torch.cat([(past / scale).unsqueeze(2), known], 2))[0]
        spread = F.softplus(self.deviation(state)).squeeze(2)
        return self.mean(state).squeeze(2) * scale, spread * scale


def deepar() -> Task:
    def batch(rows, g):
        x = numbers(g, rows, 17).cumsum(1)
        return (x[:, :-1], ids(g, 8, rows)), x[:, 1:]

    def loss(found, following):
        return -torch.distributions.Normal(*found, validate_args=False).log_prob(following).mean()

    return Task(DeepAr(), batch, loss)


class Stack(nn.Module):
    """A block of N-BEATS (Oreshkin et al. 2020): a fully connected part and two bases."""

    def __init__(self, past, future, kind, width=16):
        super().__init__()
        self.past, self.kind = past, kind
        degree = {"trend": 3, "season": 6, "generic": 5}[kind]
        self.body = nn.Sequential(mlp(past, width, width), nn.ReLU())
        self.theta = nn.Linear(width, 2 * degree)
        t = torch.arange(past + future) / (past + future)
        if kind == "trend":
            basis = torch.stack([t**k for k in range(degree)])
        else:
            waves = torch.arange(1, degree // 2 + 1).unsqueeze(1) * 2 * torch.pi * t
            basis = torch.cat([waves.cos(), waves.sin()])
        if kind == "generic":
            self.basis = nn.Parameter(torch.randn(degree, past + future) * 0.2)
        else:
            self.register_buffer("basis", basis)

    def forward(self, x):
        back, ahead = self.theta(self.body(x)).chunk(2, -1)
        return back @ self.basis[:, : self.past], ahead @ self.basis[:, self.past :]


class NBeats(nn.Module):
    def __init__(self, past=16, future=4):
        super().__init__()
        kinds = ("trend", "season", "generic")
        self.stacks = nn.ModuleList(Stack(past, future, kind) for kind in kinds)

    def forward(self, x):
        total = 0
        for stack in self.stacks:
            back, ahead = stack(x)
            x, total = x - back, total + ahead
        return total


def _series(rows, g):
    x = numbers(g, rows, 20).cumsum(1)
    return (x[:, :16],), x[:, 16:]


def nbeats() -> Task:
    def smape(guess, y):
        return (200 * (guess - y).abs() / (guess.abs() + y.abs()).clamp(min=1e-3)).mean()

    return Task(NBeats(), _series, smape)


class PatchTst(nn.Module):
    """Nie et al. 2023: overlapping patches of a normalised series, channels by themselves."""

    def __init__(self, width=16, future=4):
        super().__init__()
        self.join = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(3, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(3 * width, future)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        deviation = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        patches = ((x - mean) / deviation).unfold(1, 8, 4)
        made = self.out(self.body(self.join(patches) + self.place).flatten(1))
        return made * deviation + mean


def patchtst() -> Task:
    return Task(PatchTst(), _series, F.l1_loss)


class DLinear(nn.Module):
    """Zeng et al. 2023: a moving mean and the rest, a linear layer each."""

    def __init__(self, past=16, future=4):
        super().__init__()
        self.smooth = nn.AvgPool1d(5, 1)
        self.trend, self.rest = nn.Linear(past, future), nn.Linear(past, future)

    def forward(self, x):
        wide = F.pad(x.unsqueeze(1), (2, 2), mode="replicate")
        trend = self.smooth(wide).squeeze(1)
        return self.trend(trend) + self.rest(x - trend)


def dlinear() -> Task:
    return Task(DLinear(), _series, F.smooth_l1_loss)


class Mamba(nn.Module):
    """Gu and Dao 2023, algorithm 2: a selective state space, its scan as a loop over time."""

    def __init__(self, width=8, states=4):
        super().__init__()
        inner = 2 * width
        self.inner, self.states = inner, states
        self.table = nn.Embedding(SYMBOLS, width)
        self.norm = nn.RMSNorm(width)
        self.split = nn.Linear(width, 2 * inner, bias=False)
        self.near = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, 1 + 2 * states, bias=False)
        self.step = nn.Linear(1, inner)
        rates = torch.arange(1, states + 1).float().log().repeat(inner, 1)
        self.log_rate = nn.Parameter(rates)
        self.pass_on = nn.Parameter(torch.ones(inner))
        self.join = nn.Linear(inner, width, bias=False)
        self.out = nn.Linear(width, SYMBOLS)

    def _scanned(self, x):
        time, write, read = self.select(x).split([1, self.states, self.states], -1)
        time = F.softplus(self.step(time))
        keep = torch.exp(-time.unsqueeze(-1) * self.log_rate.exp())
        add = (time * x).unsqueeze(-1) * write.unsqueeze(2)
        state, rows = torch.zeros_like(add[:, 0]), []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + add[:, t]
            rows.append((state * read[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(rows, 1) + x * self.pass_on

    def forward(self, text):
        start = self.table(text)
        x, gate = self.split(self.norm(start)).chunk(2, -1)
        x = F.silu(self.near(x.transpose(1, 2))[..., : text.shape[1]].transpose(1, 2))
        return self.out(start + self.join(self._scanned(x) * F.silu(gate)))


def mamba() -> Task:
    return Task(Mamba(), _text, _next_symbol)


TASKS = {
    "gru": gru,
    "lstm": lstm,
    "lstm_tagger": lstm_tagger,
    "crf_tagger": crf_tagger,
    "tcn": tcn,
    "resnet1d": resnet1d,
    "wavenet": wavenet,
    "conformer": conformer,
    "conformer_ctc": conformer_ctc,
    "translator": translator,
    "deepar": deepar,
    "nbeats": nbeats,
    "patchtst": patchtst,
    "dlinear": dlinear,
    "mamba": mamba,
}
