"""Losses of PyTorch as functions of rows: values and gradients are PyTorch's."""

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

torch = pytest.importorskip("torch")
nn = torch.nn


def row_losses(*args, **kwargs):
    from delian.core.learning.interchange.torch.modules.row_losses import row_losses

    return row_losses(*args, **kwargs)


class Pinball(nn.Module):
    """One number, the mean over the rows."""

    def forward(self, outputs, targets):
        error = targets - outputs
        return torch.maximum(0.9 * error, -0.1 * error).mean()


class Focal(nn.Module):
    """One loss a row."""

    def forward(self, logits, labels):
        chances = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -((1 - chances.exp()) ** 2) * chances


NUMBERS = [
    (nn.SmoothL1Loss(reduction="none", beta=0.5), (3,)),
    (nn.HuberLoss(reduction="none", delta=0.2), ()),
    (nn.L1Loss(reduction="none"), (2, 3)),
    (nn.MSELoss(reduction="none"), ()),
    (nn.PoissonNLLLoss(reduction="none"), (3,)),
    (nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor([1.0, 2.0, 3.0])), (3,)),
    (Pinball(), ()),
    (Pinball(), (4,)),
]
LABELS = [
    (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), (5,), ()),
    (nn.CrossEntropyLoss(reduction="none", weight=torch.arange(5.0)), (5,), ()),
    (nn.MultiMarginLoss(reduction="none"), (5,), ()),
    (nn.NLLLoss(reduction="none"), (6, 5), (6,)),
    (Focal(), (5,), ()),
]
CASES = [(loss, axes, axes, False) for loss, axes in NUMBERS]
CASES += [(loss, outputs, targets, True) for loss, outputs, targets in LABELS]


@pytest.mark.parametrize(("loss", "outputs", "targets", "labels"), CASES)
def test_a_mean_over_rows_that_count_is_pytorchs_over_these_rows(loss, outputs, targets, labels):
    second = len(outputs) > 1 and labels
    rows = row_losses(loss, outputs, targets, labels=labels, classes_second=second)
    draws = torch.Generator().manual_seed(1)
    x = torch.randn((6, *outputs), generator=draws, requires_grad=True)
    y = torch.randint(0, 5, (6, *targets), generator=draws)
    y = y if labels else y.float()
    weight = np.array([1, 1, 1, 1, 0, 0], np.float32)

    def mean(x, y):
        values = rows(x, y)
        return np.sum(np.mean(values.reshape(6, -1), axis=1) * weight) / 4

    want = loss(x[:4].movedim(-1, 1) if second else x[:4], y[:4]).mean()
    want.backward()
    given = x.detach().numpy(), y.numpy().astype(np.int32) if labels else y.numpy()
    value, slope = dl.compile(dl.value_and_grad(mean))(*given)
    np.testing.assert_allclose(value, want.item(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, x.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mean(*given), want.item(), rtol=1e-5, atol=1e-6)


class Contrast(nn.Module):
    """A loss of all pairs of rows."""

    def forward(self, outputs, targets):
        return (outputs @ outputs.T - targets @ targets.T).square().mean()


class Normed(nn.Module):
    def forward(self, outputs, targets):
        errors = (outputs - targets).abs()
        return errors / errors.mean()


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, outputs, targets):
        return (outputs - targets).abs() * self.scale


REFUSED = [
    (Contrast(), "Contrast gives one number, which is not the mean"),
    (nn.MSELoss(reduction="sum"), "MSELoss gives one number, which is not the mean"),
    (Normed(), "Normed gives a row another loss than when it is alone"),
    (Learned(), "Learned has parameters"),
    (nn.TripletMarginLoss(reduction="none"), "TripletMarginLoss does not take .*negative"),
]


@pytest.mark.parametrize(("loss", "says"), REFUSED)
def test_a_loss_that_mixes_rows_or_does_not_fit_is_refused(loss, says):
    with pytest.raises(DelianError, match=says):
        row_losses(loss, (3,), (3,), labels=False)


def test_shapes_that_only_broadcasting_would_fit_are_refused():
    with pytest.raises(DelianError, match=r"MSELoss does not take .*target size"):
        row_losses(nn.MSELoss(reduction="none"), (7,), (), labels=False)
