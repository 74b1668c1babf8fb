"""Programs that an importer writes a line at a time."""

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import Loc, ProgramError
from delian.core.learning.interchange.straight_line import Ref, StraightLine


def linear(x, weight):
    return x @ weight.T


def _net(origin: Loc | None = None):
    program = StraightLine("net", ["x", "weights"])
    y = program.call(linear, Ref("x"), Ref("weights['a.b']"), origin=origin)
    y = program.call(np.add, y, np.array([1.0, 2.0, 3.0], np.float32))
    y = program.call(np.clip, y, -np.inf, 4.5)
    return program.function((y, (2, [True, None])))


def test_runs_as_python_and_compiled_to_the_same_numbers():
    net = _net()
    x, weights = np.ones((2, 4), np.float32), {"a.b": np.ones((3, 4), np.float32)}
    plain, static = net(x, weights)
    assert plain.tolist() == [[4.5, 4.5, 4.5]] * 2 and static == (2, [True, None])
    compiled, again = dl.compile(net)(x, weights)
    np.testing.assert_array_equal(compiled, plain)
    assert again == static


def test_errors_underline_the_line_that_an_operation_came_from(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("class Net:\n    def forward(self, x):\n        return self.layer(x)\n")
    origin = Loc(str(model), 3, 15, 3, 28)
    weights = {"a.b": np.ones((3, 5), np.float32)}
    with pytest.raises(ProgramError) as fault:
        dl.compile(_net(origin))(np.ones((2, 4), np.float32), weights)
    assert origin in fault.value.locs
    assert "return self.layer(x)" in str(fault.value)


def test_names_are_made_to_fit():
    program = StraightLine("class", ["x"])
    first = program.call(np.tanh, Ref("x"), name="1.conv")
    second = program.call(np.tanh, first, name="1.conv")
    assert first.name == "_1_conv" and second.name == "_1_conv_1"
    x = np.array([0.5, -0.5])
    np.testing.assert_array_equal(program.function(second)(x), np.tanh(np.tanh(x)))
    assert program.name == "class_1"
