"""PyTorch modules as models: equal to PyTorch, or refused at the module's line."""

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


def from_torch(*args, **kwargs):
    from delian.core.learning.interchange.torch.torch_model import from_torch

    return from_torch(*args, **kwargs)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


class Recurrences(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, symbols):
        y, _ = self.gru(self.lstm(self.table(symbols))[0])
        return {"last": self.norm(y[:, -1]), "mean": y.mean(1)}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask, is_causal=True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, symbols):
        return self.head(self.table(symbols).sum(1)) * self.frozen


class Droops(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.25, self.training)


def _symbols(rows):
    return torch.randint(0, 7, (rows, 6), generator=torch.Generator().manual_seed(1))


def _images(rows):
    return torch.randn(rows, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def _vectors(rows):
    return torch.randn(rows, 5, 8, generator=torch.Generator().manual_seed(1))


MODULES = [
    (Convolutions, _images),
    (Recurrences, _symbols),
    (Attention, _vectors),
    (Tied, _symbols),
]


def _leaves(outputs):
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


@pytest.mark.parametrize(("kind", "inputs"), MODULES, ids=lambda each: each.__name__.strip("_"))
def test_equals_pytorch_for_another_batch(kind, inputs):
    torch.manual_seed(0)
    module = kind()
    model = from_torch(module, (inputs(3),))
    x = inputs(4)
    module.eval()
    want = [t.detach().numpy() for t in _leaves(module(x))]
    compiled = dl.compile(lambda model, x: model(x))(model, x.numpy())
    for runs in (model(x.numpy()), compiled):
        for got, wanted in zip(_leaves(runs), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    module.train()
    sum((t * t).sum() for t in _leaves(module(x))).backward()

    def loss(model, x):
        outputs, statistics = model.in_training((x,))
        return sum([np.sum(y * y) for y in _leaves(outputs)]), statistics

    (_, statistics), slopes = dl.compile(dl.value_and_grad(loss, has_aux=True))(model, x.numpy())
    slopes = slopes.state_dict()
    named = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    assert [*model.graphs.order] == [*named]
    for name, slope in named.items():
        np.testing.assert_allclose(slopes[name], slope.numpy(), rtol=2e-4, atol=2e-5)
    buffers = dict(module.named_buffers())
    for name, value in statistics.items():
        np.testing.assert_allclose(value, buffers[name].numpy(), rtol=1e-5, atol=1e-6)


def test_rows_without_weight_do_not_reach_batch_statistics():
    torch.manual_seed(0)
    module = Convolutions()
    model = from_torch(module, (_images(3),))
    x = _images(5)
    module.train()
    want = module(x[:3]).detach().numpy()
    weight = np.array([1, 1, 1, 0, 0], np.float32)
    got, statistics = model.in_training((x.numpy(),), weight)
    np.testing.assert_allclose(got[:3], want, rtol=1e-4, atol=1e-5)
    variance = module.norm.running_var.numpy()
    np.testing.assert_allclose(statistics["norm.running_var"], variance, rtol=1e-5)


def test_batch_statistics_in_inference_leave_no_state():
    torch.manual_seed(0)
    module = Convolutions()
    model = from_torch(module, (_images(3),), batch_norm="batch")
    assert model.statistics == {}
    x = _images(4)
    module.train()
    np.testing.assert_allclose(model(x.numpy()), module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_dropout_draws_from_its_key_alone():
    model = from_torch(Droops(), (torch.ones(4, 100),))
    x = np.ones((4, 100), np.float32)
    run = dl.compile(lambda key: model.in_training((x,), None, key)[0])
    first, second = run(dl.random.key(1)), run(dl.random.key(2))
    assert set(np.unique(first)) <= {0.0, np.float32(1 / 0.75)}
    assert 0.1 < np.mean(first == 0) < 0.4
    assert np.any(first != second)
    np.testing.assert_array_equal(first, run(dl.random.key(1)))
    np.testing.assert_array_equal(model.in_training((x,))[0], x)
    np.testing.assert_array_equal(model(x), x)


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.no_grad():
            held, places = functional.max_pool1d(x * self.weight, 3, return_indices=True)
        return (x * self.weight).sum(-1) * held[..., 0] + places[..., 0]


class Square(nn.Module):
    """Two names of one parameter, which is a weight of a layer under one and none under another."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.table = self.first.weight

    def forward(self, x):
        return self.second(self.first(x)) + x @ self.table


def test_a_tied_weight_is_the_same_under_each_name():
    torch.manual_seed(0)
    module = Square()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    model = from_torch(module, (x,))
    want = module(x)
    (want * want).sum().backward()
    np.testing.assert_allclose(model(x.numpy()), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    slope = dl.grad(lambda model, x: np.sum(model(x) ** 2))(model, x.numpy()).state_dict()
    assert [*slope] == ["table"]
    np.testing.assert_allclose(slope["table"], module.first.weight.grad.numpy(), rtol=1e-4)


def test_no_gradient_flows_through_what_runs_without():
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    module = Held()
    model = from_torch(module, (x,))
    want = module(x)
    want.sum().backward()
    np.testing.assert_allclose(model(x.numpy()), want.detach().numpy(), rtol=1e-5)
    slope = dl.grad(lambda model, x: np.sum(model(x)))(model, x.numpy())
    np.testing.assert_allclose(slope.parameters["weight"], module.weight.grad.numpy(), rtol=1e-4)


class Bags(nn.Module):
    """Bags of one length, and bags with offsets: an empty one, padding, weights."""

    def __init__(self, mode):
        super().__init__()
        self.table = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=2)
        self.mode = mode

    def forward(self, symbols, flat, weights):
        offsets = torch.tensor([0, 4, 4, 5])
        weighed = self.table(flat, offsets, weights if self.mode == "sum" else None)
        return self.table(symbols), weighed


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode):
    net = Bags(mode)
    inputs = _symbols(4), torch.tensor([0, 2, 2, 5, 2, 3, 1]), torch.arange(7) / 4 - 0.5
    model = from_torch(net, inputs, dynamic_batch=False)
    arrays = [value.numpy() for value in inputs]
    want = net(*inputs)
    scales = [np.random.default_rng(k).normal(size=w.shape) for k, w in enumerate(want)]

    def loss(model, *arrays):
        found = model(*arrays)
        return np.sum(found[0] * scales[0]) + np.sum(found[1] * scales[1])

    for ours, theirs in zip(dl.compile(lambda m, *a: m(*a))(model, *arrays), want, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)
    sum((w * torch.tensor(s)).sum() for w, s in zip(want, scales, strict=True)).backward()
    slope = dl.compile(dl.grad(loss))(model, *arrays).state_dict()["table.weight"]
    np.testing.assert_allclose(slope, net.table.weight.grad.numpy(), atol=1e-5)


class Pairs(nn.Module):
    """Products of all pairs of columns, by the places of a triangle."""

    def forward(self, x):
        products = x[:, :, None] * x[:, None, :]
        i, j = torch.tril_indices(8, 8, -1)
        k, m = torch.triu_indices(8, 8, 2, dtype=torch.int32)
        return products[:, i, j], products[:, k.long(), m.long()]


def test_indices_of_triangles():
    x = _vectors(3)[:, 0]
    found = dl.compile(lambda model, x: model(x))(from_torch(Pairs(), (x[:2],)), x.numpy())
    for ours, theirs in zip(found, Pairs()(x), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_images_with_channels_last():
    torch.manual_seed(0)
    module = Convolutions().eval()
    model = from_torch(module, (_images(2),), channels_last=True)
    x = _images(3)
    got = model(np.moveaxis(x.numpy(), 1, -1), None)  # as tasks call models: no weight of rows
    np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_examples_that_are_one_tensor_are_two_inputs():
    class Difference(nn.Module):
        def forward(self, x, y):
            return x - 2 * y

    x = torch.ones(2, 3)
    model = from_torch(Difference(), (x, x))
    y = np.full((2, 3), 5, np.float32)
    assert model(np.ones((2, 3), np.float32), y).tolist() == [[-9] * 3] * 2


def test_one_of_several_outputs():
    module = Recurrences().eval()
    model = from_torch(module, (_symbols(2),), output="mean")
    want = module(_symbols(2))["mean"].detach().numpy()
    np.testing.assert_allclose(model(_symbols(2).numpy()), want, rtol=1e-4, atol=1e-5)


def test_the_module_keeps_its_mode_and_its_weights():
    module = Convolutions()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    from_torch(module, (_images(2),))
    assert module.training and not module.norm.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_weights_go_both_ways():
    torch.manual_seed(0)
    first, second = Convolutions(), Convolutions()
    model = from_torch(first, (_images(2),)).load_state_dict(second.state_dict())
    x = _images(3)
    want = second.eval()(x).detach().numpy()
    np.testing.assert_allclose(model(x.numpy()), want, rtol=1e-4, atol=1e-5)
    state = {name: torch.from_numpy(value) for name, value in model.state_dict().items()}
    assert first.load_state_dict(state, strict=False).unexpected_keys == []
    np.testing.assert_allclose(first.eval()(x).detach().numpy(), want, rtol=1e-6)


def test_a_safetensors_file_goes_both_ways(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    first, second = Convolutions(), Convolutions()
    model = from_torch(first, (_images(2),))
    safetensors.save_file(second.state_dict(), tmp_path / "second.safetensors")
    loaded = model.load(tmp_path / "second.safetensors")
    loaded.save(tmp_path / "out.safetensors")
    state = safetensors.load_file(tmp_path / "out.safetensors")
    assert {*state} == {*second.state_dict()}
    for name, value in second.state_dict().items():
        torch.testing.assert_close(state[name], value if value.is_floating_point() else state[name])


def test_a_tied_parameter_is_saved_once(tmp_path):
    module = Tied()
    from_torch(module, (_symbols(2),)).save(tmp_path / "tied.safetensors")
    arrays, metadata = dl.read_safetensors(tmp_path / "tied.safetensors")
    assert {*arrays} == {"table.weight", "frozen"} and metadata == {"format": "pt"}


def test_weights_of_another_model_are_refused():
    model = from_torch(Convolutions(), (_images(2),))
    state = dict(model.state_dict())
    with pytest.raises(DelianError, match=r"1 names missing \(head.bias\), 1 unknown \(hat\)"):
        model.load_state_dict({**{k: v for k, v in state.items() if k != "head.bias"}, "hat": 1})
    with pytest.raises(DelianError, match=r"head.bias has shape \[6\]"):
        model.load_state_dict({**state, "head.bias": np.zeros(6, np.float32)})


class Sized(nn.Module):
    def forward(self, x):
        return torch.arange(int(x.sum())).sum() + x


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Complexes(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).abs()


class Changes(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight.float()


class Autograd(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, slope):
        return slope * 7


class Custom(nn.Module):
    def forward(self, x):
        return Autograd.apply(x)


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.weight.register_hook(lambda slope: slope * 2)

    def forward(self, x):
        return self.layer(x)


class Always(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.25, True)


REFUSED = [
    (Sized, "torch.arange(int(x.sum()))"),
    (Branches, "if x.sum() > 0:"),
    (Complexes, "torch.fft.fft(x)"),
    (Changes, "changes an input in place"),
    (Wide, "weight is of float64"),
    (Custom, "Autograd.apply(x)"),
    (Hooked, "layer.weight has a hook"),
    (Always, "Always draws random numbers in inference"),
]


@pytest.mark.parametrize(("kind", "shown"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_what_cannot_be_imported_is_refused_with_its_line(kind, shown):
    with pytest.raises(DelianError) as fault:
        from_torch(kind(), (torch.ones(2, 3),))
    assert shown in str(fault.value)
    assert isinstance(fault.value, ProgramError) or kind is Wide


def test_a_class_in_place_of_a_module_is_refused():
    with pytest.raises(DelianError, match="pass an instance"):
        from_torch(Convolutions, (_images(2),))


WRONG = [
    ((torch.ones(2, 3),), {"batch_norm": "none"}, "batch_norm is 'running' or 'batch'"),
    (torch.ones(2, 3), {}, "takes its examples as a tuple"),
    ((), {}, r"DL123.*missing a required argument"),
    ((torch.ones(2, 3),), {"kwargs": {"z": torch.ones(2)}}, r"DL123.*unexpected keyword"),
    ((torch.ones(0, 3),), {}, "is empty"),
    ((torch.ones(2, 3),), {"output": "logits"}, "has no output 'logits'"),
    ((np.ones((2, 3)),), {}, "DL123"),
]


@pytest.mark.parametrize(("args", "options", "says"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_refused(args, options, says):
    with pytest.raises(DelianError, match=says):
        from_torch(Droops(), args, **options)


@pytest.mark.parametrize("state", [None, 3, {"l": "x"}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(DelianError, match=r"mapping|missing"):
        from_torch(Tied(), (_symbols(2),)).load_state_dict(state)


def test_other_shapes_than_the_examples_are_refused():
    model = from_torch(Convolutions(), (_images(2),))
    with pytest.raises(
        TypeError, match=r"exported for inputs \['any', 2, 6, 6\], not \[2, 2, 8, 6\]"
    ):
        model(np.zeros((2, 2, 8, 6), np.float32))


def test_rows_are_named_for_operators_of_aten():
    from delian.core.learning.interchange.torch.aten_table import ROWS

    for name in ROWS:
        operator, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, operator)
        assert not overload or overload in packet.overloads(), name


class Cumulative(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=None)
        self.flat = nn.BatchNorm1d(4, momentum=None, affine=False)

    def forward(self, x):
        return self.flat(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_cumulative_averages_of_batch_normalisation(tmp_path):
    torch.manual_seed(0)
    module = Cumulative()
    model = from_torch(module, (_images(3),))
    assert module.norm.num_batches_tracked.dtype is torch.int64
    assert "forward" not in vars(module.norm)

    def loss(model, x, weight):
        y, statistics = model.in_training((x,), weight)
        return np.sum(np.sum(y**3, axis=1) * weight), statistics

    step = dl.compile(dl.value_and_grad(loss, has_aux=True))
    weight = np.array([1, 1, 1, 1, 0], np.float32)
    module.train()
    for trip in range(3):
        x = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(trip)) + trip
        module.zero_grad()
        want = (module(x[:4]) ** 3).sum()
        want.backward()
        (value, statistics), slope = step(model, x.numpy(), weight)
        np.testing.assert_allclose(value, want.item(), rtol=1e-3, atol=1e-3)
        for name, parameter in module.named_parameters():
            got = slope.state_dict()[name]
            np.testing.assert_allclose(got, parameter.grad.numpy(), rtol=1e-3, atol=1e-3)
        model = model.with_statistics(statistics)
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(model.statistics[name], buffer.numpy(), rtol=1e-5, atol=1e-6)
    x = _images(1)
    np.testing.assert_allclose(
        model(x.numpy()), module.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    model.save(tmp_path / "net.safetensors")
    arrays, _ = dl.read_safetensors(tmp_path / "net.safetensors")
    state = module.state_dict()
    assert {name: (each.shape, str(each.dtype)) for name, each in arrays.items()} == {
        name: (tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in state.items()
    }
    assert arrays["norm.num_batches_tracked"] == 3
    again = from_torch(module, (x,)).load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again(x.numpy()), model(x.numpy()))
