"""Batches of imported modules: which sizes a graph serves, and which rows count."""

import delian as dl
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def from_torch(*args, **kwargs):
    from delian.core.learning.interchange.torch.torch_model import from_torch

    return from_torch(*args, **kwargs)


class Sized(nn.Module):
    def forward(self, x, y):
        if x.shape[0] > 3 and x.shape[0] % 2 == 0:
            return x * y
        return x + y


def test_a_graph_serves_the_sizes_that_it_is_exported_for():
    model = from_torch(Sized(), (torch.ones(4, 3), torch.ones(4, 3)))
    x = np.full((6, 3), 3, np.float32)
    run = dl.compile(lambda model, x, y: model(x, y))
    for runs in (model, lambda x, y: run(model, x, y)):
        assert np.all(runs(x, x) == 9)
        with pytest.raises(Exception, match=r"shape\[0\] > 3"):
            runs(x[:2], x[:2])
        with pytest.raises(Exception, match=r"% 2 == 0"):
            runs(x[:5], x[:5])
        with pytest.raises(Exception, match=r"inputs\[1\].shape\[0\] == inputs\[0\].shape\[0\]"):
            runs(x, x[:4])


class Squeezed(nn.Module):
    def forward(self, x):
        return x.squeeze() * 2


class Single(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x * 3


def test_one_row_is_refused_where_a_module_treats_it_in_another_way():
    x = np.ones((2, 3, 1), np.float32)
    for kind in (Squeezed, Single):
        model = from_torch(kind(), (torch.ones(1, 3, 1),))
        np.testing.assert_array_equal(model(x), kind()(torch.from_numpy(x)).numpy())
        if kind is Squeezed:  # what is dropped is decided at the call
            np.testing.assert_array_equal(model(x[:1]), [2, 2, 2])
            continue
        with pytest.raises(TypeError, match="gives something else for one row"):
            model(x[:1])


class Frames(nn.Module):
    """Normalises the frames of videos, which come one after another."""

    def __init__(self, transposed=False):
        super().__init__()
        self.transposed = transposed
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x):
        frames = (x.transpose(0, 1) if self.transposed else x).flatten(0, 1)
        return self.norm(torch.relu(self.conv(frames))).mean((1, 2, 3)).reshape(x.shape[:2])


def test_rows_of_joined_axes_have_the_weights_of_their_rows():
    torch.manual_seed(0)
    module = Frames()
    model = from_torch(module, (torch.zeros(2, 4, 1, 5, 5),))
    x = torch.randn(5, 4, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    weight = np.array([1, 1, 1, 0, 0], np.float32)
    got, statistics = model.in_training((x.numpy(),), weight)
    want = module(x[:3]).detach().numpy()
    np.testing.assert_allclose(got[:3], want, rtol=1e-4, atol=1e-5)
    variance = module.norm.running_var.numpy()
    np.testing.assert_allclose(statistics["norm.running_var"], variance, rtol=1e-5)


def test_weights_of_rows_that_an_operator_cannot_leave_out_are_refused():
    weight = np.ones(2, np.float32)
    x = torch.zeros(2, 4, 1, 5, 5)
    for model in (
        from_torch(Frames(transposed=True), (x,)),
        from_torch(Frames(), (x,), dynamic_batch=False),
    ):
        model.in_training((x.numpy(),))
        with pytest.raises(TypeError, match="would count rows that only fill up a batch"):
            model.in_training((x.numpy(),), weight)
        model(x.numpy(), weight)
