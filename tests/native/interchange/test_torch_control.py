"""PyTorch's control flow: outputs and gradients equal to PyTorch's, or refused."""

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
scan = pytest.importorskip("torch._higher_order_ops.scan").scan
row_map = pytest.importorskip("torch._higher_order_ops.map").map


class Branch(nn.Module):
    """Branches with weights of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(
            x.sum() > 0,
            lambda x: self.first(x[:, 0]).sin(),
            lambda x: self.second(x[:, 1]).cos(),
            (x,),
        )


class BranchBySize(nn.Module):
    def forward(self, x):
        return torch.cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x * x, (x,))


class BranchWithout(nn.Module):
    """A part of a branch that no gradient flows through."""

    def forward(self, x):
        def held(x):
            with torch.no_grad():
                factor = x.sin()
            return x * factor

        return torch.cond(x.sum() > 0, held, lambda x: x.cos(), (x,))


class Images(nn.Module):
    """Convolutions, whose images are stored with their channels last, around a branch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 2), nn.Conv2d(3, 2, 2)

    def forward(self, x):
        y = self.first(torch.stack((x, x.cos()), 1))
        y = torch.cond(y.mean() > 0, lambda y: y.relu() + 1, lambda y: y.flip(1) * 2, (y,))
        return self.second(y)


class While(nn.Module):
    """As many trips as the data say; the loop reads its carry's first value too."""

    def forward(self, x):
        y, n = torch.while_loop(
            lambda y, n: y.abs().sum() < 500,
            lambda y, n: (y * 2 + x.sin(), n + 1),
            (x, torch.zeros((), dtype=torch.int32)),
        )
        return y + n

    def plain(self, x):
        y, n = x, 0
        while y.abs().sum() < 500:
            y, n = y * 2 + x.sin(), n + 1
        return y + n


class Counted(nn.Module):
    """A counter that is a number of Python, and is read in the loop alone."""

    def forward(self, x):
        _, y = torch.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.1 + i), (0, x))
        return y

    def plain(self, x):
        for i in range(5):
            x = x * 1.1 + i
        return x


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        def step(state, row):
            state = torch.tanh(self.inner(row) + self.outer(state))
            return state, (state * 2, state.sum(1))

        return scan(step, x.new_zeros(x.shape[0], 4), x, dim=1)[1][0]


class Backwards(nn.Module):
    """Several sequences, and several states, from the last step to the first."""

    def forward(self, x):
        def step(states, rows):
            first, second = states
            first = torch.tanh(first + rows["a"])
            return (first, second + rows["b"].mean()), {"p": first * 2, "q": second.clone()}

        start = (x[:, 0] * 0, x.new_zeros(()))
        states, found = scan(step, start, {"a": x, "b": x * x}, dim=1, reverse=True)
        return found["p"] + found["q"][:, None, None].sum() + states[1]


class BranchesInScan(nn.Module):
    def forward(self, x):
        def step(state, row):
            state = torch.cond(
                row.sum() > 0, lambda s, r: s + r, lambda s, r: s * r.cos(), (state, row)
            )
            return state, state * 2

        return scan(step, torch.ones_like(x[0]), x)[1]


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return row_map(lambda row, total: self.layer(row).relu() + total, x, x.sum())


class MappedBranches(nn.Module):
    def forward(self, x):
        return row_map(
            lambda row: torch.cond(row.sum() > 0, lambda r: r.sin(), lambda r: r * 3, (row,)), x
        )


MODULES = [
    Branch,
    BranchBySize,
    BranchWithout,
    Images,
    While,
    Counted,
    Recurrence,
    Backwards,
    BranchesInScan,
    Mapped,
    MappedBranches,
]


def _input(rows, sign=1):
    x = torch.randn(rows, 5, 3, generator=torch.Generator().manual_seed(rows))
    return (x + sign * 0.3).requires_grad_()


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_outputs_and_gradients_are_pytorchs(kind):
    torch.manual_seed(0)
    module = kind()
    model = dl.from_torch(module, (_input(4).detach(),))
    run = dl.compile(lambda model, x: model(x))
    slope = dl.compile(dl.grad(lambda both: np.sum(both[0](both[1]) ** 2)))
    for x in (_input(4), _input(4, -1), _input(3), _input(6)):
        # torch's while_loop has no gradient with numbers of Python among its carries.
        want = getattr(module, "plain", module)(x)
        given = x.detach().numpy()
        torch.testing.assert_close(module(x.detach()), want.detach())
        for got in (model(given), run(model, given)):
            np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-4, atol=1e-5)
        module.zero_grad()
        (want * want).sum().backward()
        of_model, of_x = slope((model, given))
        np.testing.assert_allclose(of_x, x.grad.numpy(), rtol=1e-3, atol=1e-4)
        slopes = of_model.state_dict()
        for name, weight in module.named_parameters():
            wanted = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
            np.testing.assert_allclose(slopes[name], wanted, rtol=1e-3, atol=1e-4)


class DropsInScan(nn.Module):
    def forward(self, x):
        def step(state, row):
            return state + row, functional.dropout(row, 0.5, self.training)

        return scan(step, x[:, 0] * 0, x, dim=1)[1]


class DropsInMap(nn.Module):
    def forward(self, x):
        return row_map(lambda row: functional.dropout(row, 0.5, self.training), x)


@pytest.mark.parametrize("kind", [DropsInScan, DropsInMap], ids=lambda kind: kind.__name__)
def test_each_trip_draws_for_itself(kind):
    model = dl.from_torch(kind(), (torch.ones(4, 20, 30),))
    x = np.ones((4, 20, 30), np.float32)
    run = dl.compile(lambda model, x, key: model.in_training((x,), None, key)[0])
    first = run(model, x, dl.random.key(1))
    assert {*np.unique(first)} == {0, 2} and 0.4 < np.mean(first) / 2 < 0.6
    rows = first.reshape(-1, 30)
    assert len(np.unique(rows, axis=0)) == len(rows)
    np.testing.assert_array_equal(first, run(model, x, dl.random.key(1)))
    np.testing.assert_array_equal(first, model.in_training((x,), None, dl.random.key(1))[0])
    np.testing.assert_array_equal(model(x), x)


class Shapes(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x[:2] * 2, lambda x: x[:1] * 3, (x,))


class Counter(nn.Module):
    def forward(self, x):
        i, y = torch.while_loop(lambda i, y: y.sum() < 5, lambda i, y: (i + 1, y + 1), (0, x))
        return y * i


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.norm, lambda x: x.cos(), (x,))


class Unknown(nn.Module):
    def forward(self, x):
        from torch._higher_order_ops.out_dtype import out_dtype

        return out_dtype(torch.ops.aten.mul.Tensor, torch.float64, x, x)


REFUSED = [
    (Shapes, "torch.cond(x.sum() > 0"),
    (Counter, "gives a number that is no tensor"),
    (Statistics, "torch.cond(x.sum() > 0"),
    (Unknown, "operator out_dtype cannot be imported"),
]


@pytest.mark.parametrize(("kind", "shown"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_what_cannot_be_imported_is_refused_with_its_line(kind, shown):
    with pytest.raises(ProgramError, match="DL123") as fault:
        dl.from_torch(kind(), (torch.ones(2, 3),))
    assert shown in str(fault.value)
    assert "test_torch_control.py" in str(fault.value)
