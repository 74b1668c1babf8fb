"""The programs of the corpus: functions of public repositories, with arguments from their own
examples.

A program is one top-level function with what it calls in its module. Its arguments are those of its
first call that returns while the driver of its file runs:

    doctest    the examples in the module's docstrings
    runas      the `#runas` line of Pythran's test cases
    example    the `Example Input:` of a docstring (Modern Robotics)
    npbench    the benchmark's own `initialize`, with sizes cut down
    main       the module's own `main()`, nothing drawn
    draws      a line of `draws.txt`, with NumPy's generator of seed 0
    tests=GLOB the repository's own tests by pytest; {} is the file's name without _ and .py

There are two corpora. The language is developed against the programs of `developed`. `held_out` has
programs that it was not developed against, so the share of them that compiles is not flattered.

`choose` takes every function of a file that a driver reaches, and that is a function of its
arguments: two runs on equal arguments are equal. Whether it compiles is not asked.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import doctest
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import linecache
import os
import random
import re
import signal
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

HERE = Path(__file__).parent
#: The folders of the corpora.
CORPORA = ("developed", "held_out")
#: Seconds that a driver may take; what was recorded until then counts.
DRIVER_SECONDS = 20
#: Seconds that a program may take in Python.
PROGRAM_SECONDS = 3
#: What a function that reads or draws has in its source.
OUTSIDE = {"plt", "cv2", "open", "input", "Image", "pd", "imageio", "imread", "subprocess", "exit"}
#: Modules that only draw, read or compile: a stand-in is loaded in their place.
STAND_INS = {
    *("matplotlib", "mpl_toolkits", "cv2", "PIL", "pandas", "imageio", "seaborn", "httpx", "cvxpy"),
    *("paderbox", "cached_property", "multipledispatch", "duecredit"),
    *("tensorflow", "fire", "tqdm", "requests", "regex", "sentencepiece", "numba", "pylab"),
    *(
        "sklearn",
        "pytest",
        "terminaltables",
        "progressbar",
        "attr",
        "cupy",
        "cupyx",
        "yaml",
        "future",
    ),
}


@dataclass(frozen=True)
class File:
    """A file of a repository, at a commit, with the programs that were chosen from it."""

    repository: str
    commit: str
    path: str
    #: The folder, within the repository, that imports are made from.
    root: str
    driver: str
    sha256: str = ""
    functions: tuple[str, ...] = ()

    def place(self, folder: Path) -> Path:
        return folder / self.repository.replace("/", "__") / self.path


@dataclass(frozen=True)
class Program:
    """A function and the arguments that it is called with."""

    file: File
    name: str
    function: types.FunctionType
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.file.repository}/{self.file.path}:{self.name}"


def manifest(corpus: str) -> list[File]:
    """The files of a corpus."""
    out = []
    for repository in json.loads((HERE / corpus / "manifest.json").read_text()):
        for f in repository["files"]:
            functions = tuple(f["functions"])
            out.append(
                File(
                    repository["repository"],
                    repository["commit"],
                    f["path"],
                    f["root"],
                    f["driver"],
                    f["sha256"],
                    functions,
                )
            )
    return out


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Loading


class _StandIn(types.ModuleType):
    """A module, class or function that does nothing: what draws has no part in a program."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 1 and not kwargs and inspect.isfunction(args[0])
        return args[0] if plain else _StandIn("called")

    def __iter__(self) -> Iterator[Any]:
        return iter((_StandIn("item"), _StandIn("item")))

    def __getitem__(self, key: Any) -> Any:
        return _StandIn("item")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def stand_in() -> None:
    """From here on, modules that are not here have stand-ins. Of a process of its own."""
    sys.meta_path.append(_Finder())
    os.environ.setdefault("MPLBACKEND", "agg")


class TookTooLong(KeyboardInterrupt):
    """A time limit; no `except Exception` of a program holds it, and it ends a run of pytest."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TookTooLong

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        yield


def load(file: File, folder: Path) -> types.ModuleType:
    """Imports a file as its repository does: from `root`, by its dotted name."""
    place = file.place(folder)
    root = folder / file.repository.replace("/", "__") / file.root
    relative = place.relative_to(root)
    for where in (place.parent, root):
        if str(where) not in sys.path:
            sys.path.insert(0, str(where))
    with quiet(), limited(DRIVER_SECONDS):
        with contextlib.suppress(Exception):
            return importlib.import_module(".".join(relative.with_suffix("").parts))
        spec = importlib.util.spec_from_file_location(f"corpus_{place.stem}", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


def _with_lines(source: str, mode: str) -> Any:
    """Code whose functions have a source to read."""
    name = f"<driver {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return compile(source, name, mode)


# Recording


def _is_data(x: Any) -> bool:
    """A tree of arrays, numbers, text and functions."""
    if isinstance(x, np.ndarray | np.generic):
        return bool(x.dtype.kind in "biufc")
    if isinstance(x, list | tuple):
        return type(x) in (list, tuple) and all(map(_is_data, x))
    if isinstance(x, dict):
        return all(map(_is_data, x)) and all(map(_is_data, x.values()))
    plain = isinstance(
        x, bool | int | float | complex | str | type(None) | types.BuiltinFunctionType
    )
    return plain or isinstance(x, types.FunctionType | np.ufunc)


def has_numbers(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic | bool | int | float | complex):
        return True
    if isinstance(x, list | tuple):
        return any(map(has_numbers, x))
    return isinstance(x, dict) and any(map(has_numbers, x.values()))


def _own_functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    own = {}
    for name, f in vars(module).items():
        own_one = isinstance(f, types.FunctionType) and f.__module__ == module.__name__
        if own_one and f.__name__ == name and not hasattr(f, "__wrapped__"):
            own[name] = f
    return own


class _Recorder:
    """The first arguments of each function of a module that a call returned for."""

    def __init__(self, module: types.ModuleType, wanted: Sequence[str]) -> None:
        self.module = module
        self.wanted = set(wanted)
        self.functions = _own_functions(module)
        self.first: dict[str, tuple[Any, ...]] = {}

    def _watched(self, name: str, f: types.FunctionType) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in self.first:
                return f(*args, **kwargs)
            with contextlib.suppress(Exception):
                given = inspect.signature(f).bind(*args, **kwargs)
                kept = copy.deepcopy(given.args) if not given.kwargs else None
                if kept is not None and _is_data(kept) and has_numbers(kept):
                    result = f(*args, **kwargs)
                    self.first.setdefault(name, kept)
                    if self.wanted and self.wanted <= set(self.first):
                        raise TookTooLong  # The rest of the driver is of no use.
                    return result
            return f(*args, **kwargs)

        call.__name__, call.__doc__ = f.__name__, f.__doc__
        return call

    def _put(self, put: dict[int, Any]) -> None:
        """Replaces functions in the module, and where its package has imported them."""
        package = self.module.__name__.split(".")[0]
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] == package]:
            for name, f in list(vars(module).items()):
                if id(f) in put:
                    vars(module)[name] = put[id(f)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        watched = {id(f): self._watched(n, f) for n, f in self.functions.items()}
        back = {id(watched[id(f)]): f for f in self.functions.values()}
        self._put(watched)
        try:
            yield
        finally:
            self._put(back)
            for args in self.first.values():  # A function among the arguments is the plain one.
                assert isinstance(args, tuple)
            self.first = {
                n: tuple(back.get(id(a), a) for a in args) for n, args in self.first.items()
            }


def _doctests(module: types.ModuleType, functions: dict[str, Any]) -> Iterator[str]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in functions:
        for test in finder.find(functions[name], name, module=False):
            space = dict(vars(module))
            for example in test.examples:
                if "Traceback" not in example.want and example.exc_msg is None:
                    with contextlib.suppress(Exception):
                        exec(_with_lines(example.source, "single"), space)
            yield name


def _drive(file: File, folder: Path, module: types.ModuleType, functions: dict[str, Any]) -> None:
    place, space = file.place(folder), vars(module)
    if file.driver == "doctest":
        for _ in _doctests(module, functions):
            pass
    elif file.driver == "runas":
        for line in re.findall(r"(?m)^# ?runas:? (.*)$", place.read_text()):
            with contextlib.suppress(Exception):
                exec(_with_lines(line.strip(), "exec"), dict(space))
    elif file.driver == "example":
        for name, f in functions.items():
            text = re.search(r"Example Input[^\n]*:\n(.*?)\n\s*Output", f.__doc__ or "", re.S)
            if text:
                with contextlib.suppress(Exception):
                    values: dict[str, Any] = {"np": np}
                    exec(textwrap.dedent(text[1]), values)
                    module.__dict__[name](*[values[p] for p in inspect.signature(f).parameters])
    elif file.driver == "npbench":
        _npbench(place, folder / file.repository.replace("/", "__"), module)
    elif file.driver.startswith("tests="):
        _tests(folder / file.repository.replace("/", "__"), file, place.stem.strip("_"))
    elif file.driver == "main":
        space["show_animation"] = space["show_plot"] = False
        with contextlib.suppress(Exception, SystemExit):
            module.__dict__["main"]()
    else:
        assert file.driver == "draws"
        for name, text in draws().get(f"{file.repository}/{file.path}", {}).items():
            with contextlib.suppress(Exception):
                space[name](*drawn(text, {n: functions[n] for n in functions}))


def _tests(repository: Path, file: File, stem: str) -> None:
    """Runs the tests of a repository, without its settings of pytest."""
    import pytest

    where = file.driver.removeprefix("tests=").replace("{}", stem)
    found = sorted(str(p) for p in repository.glob(where))
    options = ["-q", "-c", os.devnull, f"--rootdir={repository}"]
    if found:
        pytest.main([*options, "-p", "no:cacheprovider", *found])


#: Sizes of npbench's arrays are cut down to this, so that a program in Python takes no seconds.
NPBENCH_SIZE = 12


def _npbench(place: Path, repository: Path, module: types.ModuleType) -> None:
    base = place.name.removesuffix("_numpy.py")
    for info in sorted((repository / "bench_info").glob("*.json")):
        bench = json.loads(info.read_text())["benchmark"]
        if bench["module_name"] != base or not str(place.parent).endswith(bench["relative_path"]):
            continue
        sizes = {
            k: min(v, NPBENCH_SIZE) if isinstance(v, int) else v
            for k, v in bench["parameters"]["S"].items()
        }
        values: dict[str, Any] = dict(sizes)
        init = bench.get("init")
        if init:
            spec = importlib.util.spec_from_file_location(base, place.with_name(base + ".py"))
            assert spec is not None and spec.loader is not None
            made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
            given = vars(made)[init["func_name"]](*[values[a] for a in init["input_args"]])
            names = init["output_args"]
            values |= dict(zip(names, given if len(names) > 1 else [given], strict=True))
        vars(module)[bench["func_name"]](*[values[a] for a in bench["input_args"]])


def draws() -> dict[str, dict[str, str]]:
    """By file and function: how its arguments are drawn."""
    out: dict[str, dict[str, str]] = {}
    path = ""
    lines = [line for c in CORPORA for line in (HERE / c / "draws.txt").read_text().splitlines()]
    for line in lines:
        if line.startswith("    "):
            name, text = line.strip().split(": ", 1)
            out[path][name] = text
        elif line and not line.startswith("#"):
            path = line
            out[path] = {}
    return out


def drawn(text: str, functions: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a line of `draws.txt`."""
    r = np.random.default_rng(0)

    def x(*shape: int) -> Any:
        return r.normal(size=shape)

    def u(*shape: int) -> Any:
        return r.uniform(0.1, 0.9, size=shape)

    def k(high: int, *shape: int) -> Any:
        return r.integers(0, high, size=shape)

    def f32(a: Any) -> Any:
        return a.astype(np.float32)

    def spd(n: int) -> Any:
        a = r.normal(size=(n, n))
        return a @ a.T + n * np.eye(n)

    def hot(n: int, m: int) -> Any:
        return np.eye(m)[r.integers(0, m, size=n)]

    def graph(n: int) -> Any:
        a = np.triu(r.uniform(size=(n, n)) > 0.4, 1).astype(np.float64)
        return a + a.T

    def weights(n: int) -> Any:
        a = graph(n) * r.uniform(0.1, 0.9, size=(n, n))
        return (a + a.T) / 2

    helpers = {"x": x, "u": u, "k": k, "f32": f32, "spd": spd, "hot": hot}
    names = {"np": np, **helpers, "graph": graph, "weights": weights, **functions}
    value = eval(_with_lines(f"({text},)", "eval"), names)
    assert isinstance(value, tuple)
    return value


def programs(file: File, folder: Path) -> list[Program]:
    """All programs that the driver of a file reaches, or the chosen ones where some are chosen."""
    module = load(file, folder)
    recorder = _Recorder(module, file.functions)
    np.random.seed(0)
    random.seed(0)
    with (
        quiet(),
        contextlib.suppress(TookTooLong, SystemExit),
        limited(DRIVER_SECONDS),
        recorder.watching(),
    ):
        _drive(file, folder, module, recorder.functions)
    chosen = file.functions or sorted(recorder.first)
    return [
        Program(file, n, recorder.functions[n], recorder.first[n])
        for n in chosen
        if n in recorder.first
    ]


# Choosing


def equal(a: Any, b: Any) -> bool:
    """Whether two results of Python are the same, bit for bit."""
    if isinstance(a, list | tuple):
        return (
            isinstance(b, list | tuple)
            and len(a) == len(b)
            and all(equal(x, y) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray | np.generic | float | complex):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
    return bool(a == b)


def is_function_of_its_arguments(program: Program) -> bool:
    """Whether two runs, from different states of the global generators, are equal; whether its
    result or what it changes has numbers; and whether it takes no file and no window.
    """
    names = {
        n.id
        for n in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(program.function))))
        if isinstance(n, ast.Name)
    }
    if names & OUTSIDE:
        return False
    ends = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        args = copy.deepcopy(program.args)
        try:
            with quiet(), limited(PROGRAM_SECONDS):
                result = program.function(*args)
        except (Exception, TookTooLong, SystemExit):
            return False
        ends.append((result, args))
    (first, changed), (second, again) = ends
    with quiet():
        try:
            changes = not equal(program.args, changed)
            if not (_is_data(first) and equal(first, second) and equal(changed, again)):
                return False
        except Exception:
            return False
    return has_numbers(first) or changes


def _text(tree: ast.AST) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def texts(file: File, folder: Path) -> list[str]:
    """A hash of each chosen function of a file."""
    tree = ast.parse(file.place(folder).read_text())
    own = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in file.functions]
    return [_text(ast.Module([n], [])) for n in own]


def choose(file: File, folder: Path, seen: set[str]) -> tuple[str, ...]:
    """The programs of a file, less those that an earlier file has word for word."""
    out = []
    for program in programs(file, folder):
        text = _text(ast.parse(textwrap.dedent(inspect.getsource(program.function))))
        if text not in seen and is_function_of_its_arguments(program):
            seen.add(text)
            out.append(program.name)
    return tuple(out)
