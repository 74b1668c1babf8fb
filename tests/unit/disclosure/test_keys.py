"""A random key is used for random numbers and for nothing else, or the bundle is refused."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core import learning
from delian.core.compiler import random, tree
from delian.core.compiler.backends import reference
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Builder, DType, TensorType
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning import bundle as bundles
from delian.core.learning.aggregate.chains import chain, clip, mask, mean, quantise, rotate
from delian.core.learning.algorithm import Algorithm, ClientResult
from delian.core.learning.build.bundle_builder import KEY, build
from delian.core.learning.bundle import Bundle
from delian.core.learning.disclosure import keys
from delian.core.learning.disclosure.dependence import analyse
from delian.core.learning.disclosure.keys import KeyMisuseError, check_keys
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = SampleSet(np.zeros((8, 4, 4), np.float32), np.zeros(8, np.int32), np.array(6), np.array(2))
#: Other names for keys: each word XOR one of these, by which half of words is drawn as it is.
NAMES = {"half": np.uint32(0xABCD0000), "shift": np.uint32(0x0000ABCD)}


def make(algorithm: Algorithm, model: Any = None, **given: Any) -> Bundle:
    def init(key: Any) -> Any:
        return dl.nn.Mlp.init(key, 16, (5,), 3) if model is None else model

    task = Classification("tiny", init, Samples(4, 1.0))
    arguments = {"clip": 5.0, "clients_max": 4, "weight_max": 8.0, "seed": 1, **given}
    example = TensorType(DType.F32, (2, 4, 4))
    return build(task, algorithm, ROWS, example=example, **arguments)


def result(state: Any, row: Any, hit: Any) -> ClientResult:
    """An update whose first numbers are a row of the device's, where `hit` is one."""
    leaves, structure = tree.flatten(state)
    flat = np.concatenate([row * hit, np.zeros(leaves[0].size - 4, np.float32)])
    leaves = [flat.reshape(leaves[0].shape), *(leaf * np.float32(0.0) for leaf in leaves[1:])]
    return ClientResult(tree.unflatten(structure, leaves), np.float32(1.0), np.float32(0.0))


@dataclass(frozen=True)
class Spy(FedAvg):
    """Sends a row of the device whose key it knows, and nothing for all others."""

    def client_update(
        self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()
    ) -> ClientResult:
        hit = ((key[0] == np.uint32(17)) & (key[1] == np.uint32(4))).astype(np.float32)
        return result(state, data.x[0, 0], hit)


@dataclass(frozen=True)
class SpyByDraw(FedAvg):
    """The same by a number that is drawn: in form a dropout."""

    def client_update(
        self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()
    ) -> ClientResult:
        hit = (random.bits(key) == np.uint32(17)).astype(np.float32)
        return result(state, data.x[0, 0], hit)


@dataclass(frozen=True)
class SpyAtHome(FedAvg):
    """Its personal model tells the key."""

    def personalise(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        return tree.map(lambda p: p + key[0].astype(np.float32), state)


# ---------------------------------------------------------------- bundles


def test_a_bundle_that_looks_for_one_device_by_its_key_is_not_built() -> None:
    with pytest.raises(KeyMisuseError) as found:
        make(Spy())
    error = found.value
    assert error.program == "client_update" and error.op == "eq"
    assert "compares a random key by `eq`" in error.message
    _, first = inspect.getsourcelines(Spy)
    line = next(
        first + i for i, text in enumerate(inspect.getsource(Spy).splitlines()) if "hit =" in text
    )
    assert f"test_keys.py:{line}" in error.message and "hit = ((key[0] ==" in error.message


def test_a_personal_model_that_tells_the_key_is_not_built() -> None:
    with pytest.raises(KeyMisuseError, match="personalise converts a random key"):
        make(SpyAtHome())


def refused(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm) -> Bundle:
    """A bundle that is refused, as somebody without the check would build it."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "delian.core.learning.build.bundle_builder.check_keys", lambda bundle, excerpt: bundle
        )
        return make(algorithm)


def test_it_is_refused_where_it_is_read_without_a_line_of_this_machines_files(monkeypatch) -> None:
    parsed = bundles.parse(refused(monkeypatch, Spy()).to_bytes(), "spy")
    with pytest.raises(
        KeyMisuseError, match=r"client_update compares a random key by `eq`"
    ) as found:
        check_keys(parsed)
    assert "test_keys.py:" in found.value.message and "hit =" not in found.value.message


def test_what_is_drawn_may_choose_and_is_said_to() -> None:
    """In form this is dropout; what keeps it from naming a device is a key that is not known."""
    made = make(SpyByDraw())
    found = analyse(made.programs["client_update"].body, keys.ports_of(made, "client_update").key)
    assert found.outputs[0].random_selects


ALGORITHMS = sorted(
    name
    for name in dir(learning)
    if inspect.isclass(kind := getattr(learning, name))
    and issubclass(kind, Algorithm)
    and kind is not Algorithm
)


def test_there_are_algorithms_to_try() -> None:
    assert len(ALGORITHMS) >= 19


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_use_keys_for_random_numbers_alone(name: str) -> None:
    kind = getattr(learning, name)
    adapted = ".adapters." in kind.__module__
    net = dl.nn.Mlp.init(random.key(0), 16, (5,), 3)
    made = make(kind(), dl.lora(net, 2, "all-linear") if adapted else None)
    update = analyse(made.programs["client_update"].body, keys.ports_of(made, "client_update").key)
    assert update.misuses == () and update.outputs[0].random


def test_rotated_updates_are_built() -> None:
    make(FedAvg(), clip=0.0, chain=chain(clip(1.0), rotate(), quantise(16), mask(), mean()))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": ()},
        {"state": (bundles.Leaf("w", "f128", (3,)),)},
        {"data": (bundles.Leaf("x", "f32", (8, 4, 4)),)},
        {"model": (0, 99)},
        {"model": (0,)},
    ],
)
def test_programs_that_do_not_fit_their_manifest_are_refused(changes: dict[str, Any]) -> None:
    made = make(FedAvg())
    manifest = dataclasses.replace(made.manifest, **changes)
    with pytest.raises(dl.DelianError, match=r"the bundle's (client_update|evaluate) has"):
        check_keys(dataclasses.replace(made, manifest=manifest))


# ---------------------------------------------------------------- one use at a time


def misuses(f: Any, *more: Any) -> list[str]:
    return [m.what for m in analyse(trace(f, KEY, *more, name="f").function.body, 0).misuses]


U32 = np.uint32
USES = {
    "a draw": lambda key: random.bits(key, 3),
    "a uniform number": lambda key: random.uniform(key, (2, 2)),
    "a normal number": lambda key: random.normal(key, 5),
    "a shuffle": lambda key: random.permutation(key, 4, 6),
    "an order": lambda key: random.permuted(key, np.int64(7), np.arange(4)),
    "a choice": lambda key: random.choice(key, 9, 3),
    "keys of keys": lambda key: random.uniform(random.split(random.fold_in(key, 3), 4)[2]),
    "lanes": lambda key: dl.vmap(lambda k: random.uniform(k, 2))(random.split(key, 3)),
    "a loop": lambda key: loop(key),
    "half a word": lambda key: random.threefry2x32(key, U32(0), U32(1))[0] & U32(0xFFFF),
    "the other half": lambda key: random.threefry2x32(key, U32(0), U32(1))[1] >> U32(16),
}
MISUSES = {
    "compares": lambda key: key[0] == U32(5),
    "compares a random key": lambda key: random.split(key)[1][0] < U32(5),
    "computes with": lambda key: key[0] + U32(1),
    "converts": lambda key: key[0].astype(np.float32),
    "converts a random key": lambda key: np.take(np.arange(5), key[0]),
    "counts with": lambda key: random.threefry2x32(random.key(3), key[0], key[1])[0],
    "gives": lambda key: random.fold_in(key, 1),
    "computes with a random key": lambda key: (
        random.threefry2x32(key, U32(0), U32(1))[0] & U32(0x1FFFF)
    ),
    "computes with a random": lambda key: random.threefry2x32(key, U32(0), U32(1))[0] >> U32(15),
    "computes": lambda key: key[0] ^ key[1],
    "computes with a": lambda key: spliced(key),
}


def loop(key: Any) -> Any:
    total = np.float32(0.0)
    for i in range(3):
        key = random.fold_in(key, i)
        total = total + random.uniform(key)
    return total


def spliced(key: Any) -> Any:
    """A word that is taken out of its pair by a zero beside the other."""
    y0, y1 = random.threefry2x32(key, U32(0), U32(1))
    return np.stack([y0, y1]) ^ np.stack([U32(0), y1])


@pytest.mark.parametrize("use", USES)
def test_a_key_may_be_drawn_from(use: str) -> None:
    assert misuses(USES[use]) == []


@pytest.mark.parametrize("what", MISUSES)
def test_a_key_may_be_nothing_else(what: str) -> None:
    assert any(found.startswith(what) for found in misuses(MISUSES[what]))


def test_a_key_may_be_no_index() -> None:
    b = Builder([KEY])
    word = b("reshape", b("slice", b.params[0], start=(0,), stop=(1,), step=(1,)), shape=())
    block = b.finish([b("take", b.constant(np.arange(9.0)), word, axis=0)])
    found = analyse(block, 0)
    assert [m.what for m in found.misuses] == ["chooses by a random key"]
    assert found.outputs[0].random_selects


def test_a_key_of_a_programs_own_is_no_devices() -> None:
    assert misuses(lambda key, x: x * (random.key(7)[1] == U32(7)), np.float32(1)) == []


def words_of(b: Builder, keys: Any, *places: int) -> list[Any]:
    cuts = [b("slice", keys, start=(i,), stop=(i + 1,), step=(1,)) for i in places]
    return [b("reshape", cut, shape=()) for cut in cuts]


def splitting(b: Builder, words: list[Any], count: Any) -> tuple[Any, Any]:
    """Another key, and a number that is drawn."""
    made = b.emit("threefry", (*words, count, count))
    return b("concat", *[b("reshape", w, shape=(1,)) for w in made], axis=0), b("xor", *made)


def test_a_key_that_one_loop_after_another_splits_may_be_drawn_from() -> None:
    """The counts of the draws are carried as well, and are known before the key."""
    u32 = TensorType(DType.U32)
    b = Builder([KEY])
    made = [b.params[0], b.constant(np.uint32(7))]
    for _ in range(2):
        body = Builder([TensorType(DType.I64), KEY, u32])
        key, drawn = splitting(body, words_of(body, body.params[1], 0, 1), body.params[2])
        block = body.finish([key, body("add", body.params[2], drawn)])
        trips = (b.constant(np.int64(0)), b.constant(np.int64(2)))
        made = list(b.emit("for", (*trips, *made), {"consts": 0}, (block,)))
    assert analyse(b.finish(made[1:]), 0).misuses == ()


@pytest.mark.parametrize("place", [0, 1])
def test_words_of_a_key_or_of_a_known_number_are_not_drawn_from(place: int) -> None:
    """A key, XOR a word that is known, is a key still. The order of the inputs is all the same."""
    b = Builder([KEY, KEY])
    mixed = b("concat", b.params[place], b.params[1 - place], axis=0)
    _, drawn = splitting(b, words_of(b, mixed, 0, 2), b.constant(np.uint32(0)))
    found = analyse(b.finish([drawn]), place).misuses
    assert [(m.what, m.op) for m in found] == [("computes with a random key", "xor")]


# ---------------------------------------------------------------- by running


class _Maker:
    """Grows a program on one key: keys and words that move about, draws, and now and then a
    misuse.
    """

    def __init__(self, draw: Any, half: str) -> None:
        self.draw, self.half = draw, half
        self.b = Builder([TensorType(DType.U32, (2,))])
        self.keys = [self.b.params[0]]  # u32[2]
        self.drawn = [self.b.constant(np.uint32(7))]  # u32[]

    def any(self, of: list[Any]) -> Any:
        return self.draw(st.sampled_from(of))

    def word(self) -> Any:
        place = self.draw(st.integers(0, 1))
        key = self.keys[-1]
        if self.draw(st.booleans()):
            cut = self.b("slice", key, start=(place,), stop=(place + 1,), step=(1,))
            return self.b("reshape", cut, shape=())
        return self.b("take", key, self.b.constant(np.int64(place)), axis=0)

    def generate(self) -> tuple[Any, Any]:
        key = self.any(self.keys)
        halves = [self.b("take", key, self.b.constant(np.int64(i)), axis=0) for i in (0, 1)]
        return self.b.emit("threefry", (*halves, self.any(self.drawn), self.any(self.drawn)))

    def stack(self, *words: Any) -> Any:
        return self.b("concat", *(self.b("reshape", w, shape=(1,)) for w in words), axis=0)

    def step(self) -> None:
        b, kinds = self.b, ["split", "xor", self.half, "moved", "chosen", "compare"]
        kind = self.draw(st.sampled_from([*kinds, "loop", "misuse", "misuse"]))
        if kind == "split":
            self.keys.append(self.stack(*self.generate()))
        elif kind == "xor":
            self.drawn.append(b("xor", *self.generate()))
        elif kind == "half":
            most = self.any([np.uint32(1), np.uint32(0xFFFF), np.uint32(0x10000)])
            self.drawn.append(b("and", b.constant(most), self.generate()[0]))
        elif kind == "shift":
            by = b.constant(np.uint32(self.any([15, 16, 30])))
            self.drawn.append(b("shr", self.generate()[1], by))
        elif kind == "moved":
            self.keys.append(b("reverse", self.any(self.keys), axes=(0,)))
        elif kind == "chosen":
            less = b("lt", self.any(self.drawn), self.any(self.drawn))
            full = b("broadcast", less, shape=(2,), dims=())
            self.keys.append(b("select", full, self.any(self.keys), self.any(self.keys)))
        elif kind == "compare":
            less = b("lt", self.any(self.drawn), self.any(self.drawn))
            self.drawn.append(b("convert", less, dtype=DType.U32))
        elif kind == "loop":
            self.loop()
        else:
            self.misuse()

    def loop(self) -> None:
        inner = Builder(
            [TensorType(DType.I64), *(TensorType(DType.U32, (2,)), TensorType(DType.U32))]
        )
        _, key, total = inner.params
        halves = [inner("take", key, inner.constant(np.int64(i)), axis=0) for i in (0, 1)]
        y0, y1 = inner.emit("threefry", (*halves, total, total))
        pair = [inner("reshape", y, shape=(1,)) for y in (y0, y1)]
        drawn = inner("add", total, inner("xor", y0, y1))
        block = inner.finish([inner("concat", *pair, axis=0), drawn])
        bounds = [self.b.constant(np.int64(i)) for i in (0, 2)]
        made = self.b.emit(
            "for", (*bounds, self.any(self.keys), self.any(self.drawn)), {"consts": 0}, (block,)
        )
        self.keys.append(made[0])
        self.drawn.append(made[1])

    def misuse(self) -> None:
        b, kind = self.b, self.any(["raw", "xor", "add", "eq", "counter", "index"])
        word, other = self.word(), self.any(self.drawn)
        if kind == "raw":
            self.drawn.append(word)
        elif kind in ("xor", "add"):
            self.drawn.append(b(kind, word, other))
        elif kind == "eq":
            self.drawn.append(b("convert", b("eq", word, other), dtype=DType.U32))
        elif kind == "counter":
            zero = b.constant(np.uint32(3))
            self.drawn.append(b.emit("threefry", (zero, zero, word, word))[0])
        else:
            self.drawn.append(b("take", b.constant(np.arange(9, dtype=np.uint32)), word, axis=0))


@st.composite
def key_programs(draw: Any, half: str) -> Any:
    maker = _Maker(draw, half)
    for _ in range(draw(st.integers(1, 8))):
        maker.step()
    return maker.b.finish(maker.drawn[-3:])


@pytest.mark.parametrize("half", NAMES)
@settings(max_examples=300)
@given(data=st.data(), key=st.tuples(*[st.integers(0, 2**32 - 1)] * 2))
def test_a_program_without_misuse_does_not_see_what_its_key_is(half, data, key) -> None:
    block = data.draw(key_programs(half))
    if analyse(block, 0).misuses:
        return
    names, real = NAMES[half], PRIMITIVES["threefry"].reference

    def renamed(args: Any, attrs: Any) -> Any:
        return [y ^ names for y in real([args[0] ^ names, args[1] ^ names, *args[2:]], attrs)]

    words = np.array(key, np.uint32)
    expected = run_block(block, [words])
    row = dataclasses.replace(PRIMITIVES["threefry"], reference=renamed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "PRIMITIVES", {**PRIMITIVES, "threefry": row})
        found = run_block(block, [words ^ names])
    for was, now in zip(expected, found, strict=True):
        np.testing.assert_array_equal(was, now)
