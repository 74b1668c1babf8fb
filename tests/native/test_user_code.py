"""Users' Python files are run as they are, whatever Python has compiled of them before."""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import py_compile
import sys
import traceback

import numpy as np
import pytest
from delian.core.common import user_code
from delian.core.common.errors import DelianError
from delian.core.common.user_code import load_function
from delian.core.compiler import api

ONE = "def f(x):\n    return x + 1\n"
TWO = ONE.replace("1", "2")


@pytest.fixture(autouse=True)
def compiled_code_is_kept(monkeypatch):
    """As it is where nobody says otherwise."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for path in folder.iterdir():
        sys.modules.pop(path.stem, None)


def with_time_of(path, other):
    stat = other.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_file_of_the_same_size_and_second_is_another_file(tmp_path):
    file, times = tmp_path / "model.py", tmp_path / "times"
    times.touch()
    file.write_text(ONE)
    with_time_of(file, times)
    py_compile.compile(str(file))  # as an import elsewhere would have left it
    assert load_function(file, "f")(1) == 2
    file.write_text(TWO)
    with_time_of(file, times)
    assert load_function(file, "f")(1) == 3


def test_nothing_is_left_beside_it(tmp_path, on_path):
    (on_path / "beside_it.py").write_text(ONE)
    (tmp_path / "model.py").write_text("from beside_it import f\ndef g(x):\n    return f(x)\n")
    assert load_function(tmp_path / "model.py", "g")(1) == 2
    assert not [*tmp_path.rglob("__pycache__")]


def test_a_module_of_the_user_s_is_read_anew_and_an_installed_one_is_not(tmp_path, on_path):
    helper, times = on_path / "helping_f.py", tmp_path / "times"
    times.touch()
    installed = on_path / "site-packages"
    installed.mkdir()
    sys.path.insert(0, str(installed))
    (installed / "installed_f.py").write_text(ONE)
    file = tmp_path / "model.py"
    file.write_text("import helping_f, installed_f\ndef g(x):\n    return helping_f.f(x)\n")
    try:
        for text, expected in ((ONE, 2), (TWO, 3)):
            helper.write_text(text)
            with_time_of(helper, times)
            if text is ONE:
                py_compile.compile(str(helper))
            sys.modules.pop("helping_f", None)
            importlib.invalidate_caches()
            assert load_function(file, "g")(1) == expected
        assert (installed / "__pycache__").is_dir()
    finally:
        sys.path.remove(str(installed))
        sys.modules.pop("installed_f", None)


def test_what_was_read_is_what_is_shown_of_it(tmp_path):
    """Tracebacks and `inspect` have the lines that run, and not what the file has become."""
    file = tmp_path / "model.py"
    file.write_text("# coding: latin-1\ndef f(x):\n    y = 'é\x0c'\n    return x.none", "latin-1")
    f = load_function(file, "f")
    file.write_text("something else\n" * 9)
    linecache.checkcache()
    assert inspect.getsource(f) == "def f(x):\n    y = 'é\x0c'\n    return x.none\n"
    with pytest.raises(AttributeError) as caught:
        f(1)
    (last,) = traceback.extract_tb(caught.value.__traceback__)[-1:]
    assert (last.filename, last.lineno, last.line) == (str(file), 4, "return x.none")


def test_the_lines_change_with_the_file_when_it_is_loaded_again(tmp_path):
    file = tmp_path / "model.py"
    for text in (ONE, TWO):
        file.write_text(text)
        assert inspect.getsource(load_function(file, "f")) == text


def compiled(f):
    return api.compile(f, backend="reference")(np.float32(1))


def test_of_a_file_that_was_read_twice_each_function_is_compiled_as_it_is(tmp_path):
    file = tmp_path / "model.py"
    made = []
    for text in (ONE, TWO):
        file.write_text(text)
        made.append(load_function(file, "f"))
    assert [f(1) for f in made] == [compiled(f) for f in made] == [2, 3]


def test_a_module_that_python_loads_again_is_compiled_as_it_is_now(tmp_path, on_path):
    helper = on_path / "loaded_again.py"
    helper.write_text(ONE)
    (tmp_path / "model.py").write_text("from loaded_again import f\ndef g(x):\n    return f(x)\n")
    load_function(tmp_path / "model.py", "g")
    module = sys.modules["loaded_again"]
    assert module.f(1) == compiled(module.f) == 2
    helper.write_text(TWO)
    importlib.reload(module)
    assert module.f(1) == compiled(module.f) == 3


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "model.py"
    with file.open("wb") as stream:
        stream.truncate(user_code.SOURCE_BYTES_MAX + 1)
    with pytest.raises(DelianError, match=r"model\.py is larger than the 4 MiB"):
        load_function(file, "f")
    file.write_bytes(ONE.encode().ljust(user_code.SOURCE_BYTES_MAX))
    assert load_function(file, "f")(1) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"x = 1\nx = = 2\n", r"model\.py:2: running it failed: SyntaxError"),
        (b"x = '\xff'\n", r"model\.py.*: running it failed: SyntaxError"),
        (b"x = '\x00'\n", r"model\.py.*: running it failed: (SyntaxError|ValueError)"),
    ],
)
def test_what_is_no_python_is_told_with_its_line(tmp_path, text, said):
    (tmp_path / "model.py").write_bytes(text)
    with pytest.raises(DelianError, match=said):
        load_function(tmp_path / "model.py", "f")


def test_its_sources_are_the_user_s_own(tmp_path, on_path):
    (on_path / "helping_too.py").write_text(ONE)
    file = tmp_path / "model.py"
    file.write_text("import helping_too, json, numpy, delian as dl\ndef g(x):\n    return x\n")
    load_function(file, "g")
    found = user_code.sources()
    assert str(file) in found and str(on_path / "helping_too.py") in found
    assert all(len(found[str(p)]) == 64 for p in (file, on_path / "helping_too.py"))
    modules = (
        "json",
        "numpy",
        "delian",
        "delian.core.common.user_code",
        "delian.simulations.runs.study",
    )
    others = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    assert not found.keys() & {*others}


def test_of_a_module_that_has_changed_since_nothing_is_known(tmp_path, on_path):
    """One that was there before users' files were loaded: what of it was run nobody can say."""
    file = on_path / "imported_before.py"
    file.write_text(ONE)
    importlib.import_module("imported_before")
    assert user_code.sources()[str(file)] == ""
    os.utime(file, (1, 1))
    assert len(user_code.sources()[str(file)]) == 64
