"""PyTorch modules that select by masks: as many elements as the data decide, for any batch."""

from __future__ import annotations

import importlib

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


class Selecting(nn.Module):
    """A layer, and what a subclass makes of rows and their labels (-1: none)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)


class MaskedLoss(Selecting):
    def forward(self, x, y):
        return functional.cross_entropy(self.layer(x)[y >= 0], y[y >= 0])


class RowLosses(Selecting):
    def forward(self, x, y):
        losses = functional.cross_entropy(self.layer(x), y.clamp(min=0), reduction="none")[y >= 0]
        hardest, _ = losses.sort(descending=True)
        return hardest[0] + losses.mean() + losses.std()


class Places(Selecting):
    def forward(self, x, y):
        rows = torch.nonzero(y >= 0).squeeze(1)
        (others,) = torch.where(y < 0)
        i, j = torch.where(self.layer(x) > 0)
        out = self.layer(x)
        return out[rows].exp().sum() + (out[others] ** 2).sum() + out[i, j].sum()


class Elements(Selecting):
    def forward(self, x, y):
        out = self.layer(x)
        return torch.masked_select(out, (y >= 0).unsqueeze(1)).sum() + out[x[:, :3] > 0].var()


class Writing(Selecting):
    def forward(self, x, y):
        out = torch.zeros(x.shape[0], 3)
        out[y >= 0] = self.layer(x[y >= 0])
        out[y < 0] += 1.5
        out[y == 1] *= 2
        return (out**2).mean()


class Normalised(Selecting):
    def forward(self, x, y):
        kept = self.layer(x)[y >= 0]
        kept = functional.layer_norm(kept, (3,))
        kept = functional.normalize(kept, dim=1)
        return torch.softmax(kept @ self.layer.weight, 1)[:, :2].sum(0).prod()


KINDS = [MaskedLoss, RowLosses, Places, Elements, Writing, Normalised]


def batch(rows, seed, labels=None):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(-1, 3, (rows,), generator=g) if labels is None else torch.tensor(labels)
    return torch.randn(rows, 5, generator=g), y


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_losses_and_slopes_equal_pytorchs_for_several_batches(kind):
    torch.manual_seed(0)
    net = kind()
    model = dl.from_torch(net, batch(6, 1))
    step = dl.compile(dl.value_and_grad(lambda model, x, y: model(x, y)))
    for inputs in (batch(6, 1), batch(6, 2), batch(9, 3), batch(6, 4, [0, 1, 2, 2, -1, 1])):
        want = net(*inputs)
        slopes = torch.autograd.grad(want, list(net.parameters()))
        value, slope = step(model, *(each.numpy() for each in inputs))
        np.testing.assert_allclose(value, want.item(), rtol=2e-5)
        for (name, _), theirs in zip(net.named_parameters(), slopes, strict=True):
            ours = slope.state_dict()[name]
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=2e-5)


def test_a_mean_of_nothing_is_nan_as_in_pytorch():
    net, inputs = MaskedLoss(), batch(4, 1, [-1, -1, -1, -1])
    model = dl.from_torch(net, batch(6, 1))
    with np.errstate(all="ignore"):
        value = dl.compile(lambda model, x, y: model(x, y))(model, *(v.numpy() for v in inputs))
    assert np.isnan(net(*inputs).item()) and np.isnan(value)


class Rows(Selecting):
    def forward(self, x, y):
        return self.layer(x)[y >= 0], y[y >= 0] * 2


def test_a_result_is_as_long_as_the_data_decide():
    net = Rows()
    model = dl.from_torch(net, batch(6, 1))
    run = dl.compile(lambda model, x, y: model(x, y))
    for inputs in (batch(6, 2), batch(8, 3)):
        arrays = [each.numpy() for each in inputs]
        for found in (run(model, *arrays), model(*arrays)):
            for ours, each in zip(found, net(*inputs), strict=True):
                theirs = each.detach().numpy()
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Pairs(Selecting):
    def forward(self, x, y):
        kept = self.layer(x)[y >= 0]
        return (kept @ kept.T).sum()


def test_two_axes_of_such_a_length_are_refused_at_the_module_s_line():
    model = dl.from_torch(Pairs(), batch(6, 1))
    with pytest.raises(ProgramError, match=r"kept @ kept\.T"):
        dl.compile(lambda model, x, y: model(x, y))(model, *(v.numpy() for v in batch(6, 1)))


@pytest.fixture(scope="module")
def suppression():
    """torchvision's operator, where its package does not declare it."""
    try:
        importlib.import_module("torchvision.ops")
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

        @torch.library.register_fake("torchvision::nms", lib=library)
        def _(dets, scores, iou_threshold):
            return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)

        yield torch.ops.torchvision.nms
        library._destroy()
    else:
        yield torch.ops.torchvision.nms


def test_torchvision_s_suppression_is_a_row(suppression):
    class Detections(nn.Module):
        def forward(self, boxes, scores):
            kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
            return boxes[kept], scores[kept]

    g = torch.Generator().manual_seed(1)
    low = torch.rand(12, 2, generator=g) * 8
    boxes = torch.cat([low, low + 1 + 6 * torch.rand(12, 2, generator=g)], 1)
    scores = torch.rand(12, generator=g)
    model = dl.from_torch(Detections(), (boxes, scores))
    found = dl.compile(lambda model, b, s: model(b, s))(model, boxes.numpy(), scores.numpy())
    places = dl.ops.non_max_suppression(boxes.numpy(), scores.numpy(), 0.5, 12)
    kept = places[places >= 0]
    assert 1 < len(kept) < 12
    np.testing.assert_array_equal(found[0], boxes.numpy()[kept])
    np.testing.assert_array_equal(found[1], scores.numpy()[kept])
