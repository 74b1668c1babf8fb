"""`delian ir`: programs beside their source, as C, and what two of them compute differently."""

from __future__ import annotations

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.common.user_code import load_function
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.text import print_function
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from typer.testing import CliRunner

SOURCE = """
import numpy as np

def loss(w, x, y):
    error = x @ w - y
    return np.sum(error * error)

def bent(w, x, y):
    error = np.tanh(x @ w) - y
    return np.sum(error * error)

def roots(x):
    y = x
    while np.max(np.abs(y**3 - x)) > 1e-4:
        y = y - (y**3 - x) / (3 * y**2)
    return y

import delian as dl

def likely(w, x, y):
    scores = x @ w
    return np.mean(dl.ops.cross_entropy(scores, y))

def attended(q, k, v):
    return np.sum(dl.ops.attention(q, k, v))
"""
ARGS = ["--arg", "f32[3]", "--arg", "f32[8,3]", "--arg", "f32[8]"]


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    return file


def run(*arguments):
    return CliRunner().invoke(app, ["ir", *map(str, arguments)], catch_exceptions=False)


def test_a_program_stands_beside_its_source_with_what_it_costs(model):
    lines = run("show", f"{model}:loss", *ARGS).stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if "error = x @ w - y" in line)
    assert lines[place].strip().startswith("# model.py:5")
    assert "dot(%1, %0)" in lines[place + 1] and lines[place + 1].endswith("48 FLOP           32 B")
    assert "sub(" in lines[place + 2]
    assert lines[-1] == "# 4 operations, 72 FLOP a round, 100 B of results"


def test_what_native_code_has_no_kernel_for_is_listed(model):
    in_doubles = [text.replace("f32", "f64") for text in ARGS]
    for stage in ("simplify", "fuse"):
        lines = run("show", f"{model}:loss", "--after", stage, *in_doubles).stdout.splitlines()
        assert lines[-1] == "# %3: dot of f64 is left to plain loops"
    in_halves = [text.replace("f32", "f16") for text in ARGS]
    assert "plain" not in run("show", f"{model}:loss", *in_halves).stdout


def test_attention_in_doubles_is_listed_though_it_has_several_results(model):
    keys = ["--arg", "f64[2,4,16,8]"] * 3
    lines = run("show", f"{model}:attended", "--grad", "1", *keys).stdout.splitlines()
    said = [line.partition(": ")[2] for line in lines if line.endswith("left to plain loops")]
    names = ("attention", "attention_grad")
    assert said == [f"{name} of f64 is left to plain loops" for name in names]


def test_a_program_is_timed_step_by_step(model):
    said = run("time", f"{model}:bent", "--grad", "1", "--calls", "2", *ARGS).stdout
    first, head, *steps = said.splitlines()
    assert first.endswith(f"{len(steps)} steps") and "GFLOP/s" in head
    assert any("dot" in line and "model.py:9" in line for line in steps)


def test_steps_and_loops_that_a_library_function_makes_are_of_the_line_that_called_it(model):
    arguments = ["--arg", "f32[3,4]", "--arg", "f32[8,3]", "--arg", "i32[8]"]
    steps = run("time", f"{model}:likely", "--calls", "2", *arguments).stdout.splitlines()[2:]
    loops = [x for x in run("c", f"{model}:likely", *arguments).stdout.splitlines() if "/*" in x]
    named = [line for line in [*steps, *loops] if ".py:" in line]
    assert named and all("losses.py" not in line for line in named)
    called = 1 + next(i for i, t in enumerate(SOURCE.splitlines()) if "cross_entropy(" in t)
    for lines in (steps, loops):
        assert any("exp" in line and f"model.py:{called}" in line for line in lines)


def test_regions_are_listed_under_their_lines(model):
    said = run("show", f"{model}:roots", "--arg", "f32[3]").stdout
    assert said.index("while np.max") < said.index("cond(") < said.index("body(")
    assert said.index("body(") < said.index("# model.py:15   y = y - ")
    assert said.count("{") == said.count("}"), "nothing is left out"


def test_two_files_with_the_same_function_are_told_apart(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
        said = run("show", f"{tmp_path / name}.py:loss", *ARGS).stdout
        assert f"# {name}.py:5" in said


OWN = """
import delian as dl
import numpy as np

@dl.module
class Net:
    dense: dl.nn.Dense

    def __call__(self, x, weight):
        return np.tanh(self.dense(x))

def init(key):
    return Net(dl.nn.Dense.init(key, 4, 3))
"""


def test_a_bundle_s_program_is_shown_beside_the_user_s_lines(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    rows = SampleSet(
        np.zeros((8, 4), np.float32), np.arange(8, dtype=np.int32) % 3, np.array(6), np.array(2)
    )
    task = Classification("own", load_function(tmp_path / "own.py", "init"), Samples(4, 1.0))
    example = TensorType(DType.F32, (2, 4))
    bounds = {"clip": 5.0, "clients_max": 4, "weight_max": 8.0, "seed": 1}
    build(task, FedAvg(), rows, example=example, **bounds).save(tmp_path / "own.bundle")
    said = run("show", f"{tmp_path}/own.bundle:infer").stdout
    assert said.count("# own.py:10") == 1
    assert said.index("# own.py:10") < said.index("dot(") < said.index("tanh(")
    assert "# build.py" not in said and "# layers.py" not in said


def test_what_a_listing_adds_does_not_change_the_program(model):
    types = [TensorType(DType.F32, s) for s in ((3,), (8, 3), (8,))]
    lines = [
        line.strip()
        for line in run("show", f"{model}:loss", *ARGS).stdout.splitlines()
        if not line.strip().startswith("#")
    ]
    plain = print_function(trace(load_function(model, "loss"), *types).function).splitlines()
    assert [line.split("   ")[0].strip() for line in lines] == [line.strip() for line in plain]


def test_before_simplification_there_is_more(model):
    counts = [
        int(
            run("show", f"{model}:loss", *ARGS, "--grad", 1, "--after", stage)
            .stdout.rsplit("# ", 1)[1]
            .split()[0]
        )
        for stage in ("trace", "simplify")
    ]
    assert counts[0] > counts[1]


def test_the_loops_that_native_code_has(model):
    said = run("show", f"{model}:loss", *ARGS, "--after", "fuse").stdout
    assert said.index("call %3: f32[8] = dot") < said.index("loop 8 {") < said.index("reduce_sum")


def test_the_c_names_the_lines_that_it_is_from(model):
    said = run("c", f"{model}:loss", *ARGS).stdout
    assert "/* dot (model.py:5) */" in said and "int loss(" in said


def test_a_difference_renames_nothing_else(model):
    same = run("diff", f"{model}:loss", f"{model}:loss", *ARGS)
    assert same.exit_code == 0 and same.stdout == ""
    other = run("diff", f"{model}:loss", f"{model}:bent", *ARGS)
    assert other.exit_code == 1
    added = [line for line in other.stdout.splitlines() if line.startswith("+ ")]
    assert "= tanh(" in added[0]
    assert not any("dot(" in line for line in added), "what comes before is the same"


def test_a_bundle_s_program_and_a_text_are_shown_too(model, tmp_path):
    types = [TensorType(DType.F32, s) for s in ((3,), (8, 3), (8,))]
    text = tmp_path / "loss.ir"
    text.write_text(print_function(trace(load_function(model, "loss"), *types).function))
    assert "reduce_sum" in run("show", text).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py:f"], "no such Python file"),
        (["{model}:none"], "no function `none`"),
        (["{model}"], "which function"),
        (["{model}:loss", "--arg", "f33[3]"], "f33"),
        (["{model}:loss", "--arg", "f32[3]"], "without `x`, `y`"),
        (["nowhere.bundle:infer"], "no file"),
        (["/"], "/ is a folder"),
    ],
)
def test_what_cannot_be_shown_is_told(model, arguments, says):
    with pytest.raises(DelianError, match=says):
        run("show", *(a.format(model=model) for a in arguments))


def test_a_text_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "huge.ir").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DelianError, match="larger than"):
        run("show", tmp_path / "huge.ir")


CHANGES = """
def bent(x):
    y = x.copy()
    total = 0.0
    for i in range(40):
        before = y.copy()
        y[i, 0] += 1.0
        total += (y @ before).sum()
    return y, total
"""


def test_what_is_copied_is_listed(tmp_path):
    (tmp_path / "changes.py").write_text(CHANGES)
    said = run("show", f"{tmp_path}/changes.py:bent", "--arg", "f64[40,40]", "--after", "fuse")
    lines = [line for line in said.stdout.splitlines() if line.startswith("# copy of ")]
    assert lines[0] == "# copy of f64[40,40], within 0 loops: start of for (changes.py:5)"
    assert any("within 1 loops: update of dynamic_update" in line for line in lines)
