"""Artifacts: what they say, what is refused unopened; programs without a compiler, and as C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_module
from delian.core.compiler.backends.native.toolchain import artifact, targets
from delian.core.compiler.backends.native.toolchain.artifact import (
    ArtifactError,
    Entry,
    Facts,
    Layout,
)
from delian.core.compiler.backends.native.toolchain.targets import find_target
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Array, DType, TensorType
from delian.core.learning import Algorithm, Classification, FedAvg, Maml, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import DEVICE_PROGRAMS, Bundle
from delian.core.learning.export import portable
from delian.core.learning.export.artifact_build import Profile, build_for
from delian.core.learning.export.program_ports import chosen, ports_of
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime

KEY = np.array([1, 2], np.uint32)
ROWS = SampleSet(
    np.random.default_rng(0).integers(0, 17, (12, 4, 4)).astype(np.uint8),
    np.arange(12, dtype=np.int32) % 3,
    np.array(8),
    np.array(3),
)
X: Array = np.random.default_rng(1).random((2, 4, 4), dtype=np.float32)
FACTS = Facts(
    target="aarch64-linux-musl",
    machine="aarch64",
    compiler="some",
    flags=("-O2",),
    emitter="e",
    entries=(Entry("infer", "dl_entry_0", "hash", 64, 64, 1, 1, (), ((0, 0),), True),),
    features=("asimd", "sve"),
)
HEADERS = Path(artifact.__file__).parents[1] / "c"


def made(algorithm: Algorithm | None = None) -> Bundle:
    task = Classification("tiny", lambda key: Mlp.init(key, 16, (5,), 3), Samples(4, 1 / 16))
    return build(
        task,
        algorithm or FedAvg(local=sgd(0.1, 0.9)),
        ROWS,
        example=TensorType(DType.F32, X.shape),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return made()


@pytest.fixture(scope="module")
def built(bundle: Bundle, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "tiny.dlo"
    path.write_bytes(build_for(bundle, find_target("native"), programs=["infer"]).content)
    return path


def kept(path: Path, facts: Facts, content: bytes = b"object") -> Path:
    path.write_bytes(artifact.sealed(content, facts))
    return path


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.dlo", FACTS)
    assert artifact.read(path) == FACTS
    assert path.read_bytes().startswith(b"object")


def test_constants_are_read_as_they_were_written(tmp_path: Path) -> None:
    half = np.arange(70, dtype=np.float16)
    arrays = (np.arange(6.0).reshape(2, 3), half, np.array([True, False]))
    first, second = map(Layout.of, arrays[:2]), [Layout.of(arrays[2])]
    entry = FACTS.entries[0]
    entries = (
        replace(entry, constants=tuple(first)),
        replace(entry, name="none"),
        replace(entry, name="last", constants=tuple(second)),
    )
    path = tmp_path / "a.dlo"
    path.write_bytes(artifact.sealed(b"odd object", replace(FACTS, entries=entries), arrays))
    facts = artifact.read(path)
    assert facts.entries == entries
    found = artifact.constants_of(path, facts)
    assert [len(each) for each in found] == [2, 0, 1]
    for a, b in zip((*found[0], *found[2]), arrays, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    kept(path, FACTS, b"")  # another file in its place
    with pytest.raises(ArtifactError, match="its constants"):
        artifact.constants_of(path, facts)


@pytest.mark.parametrize(
    "constants", [0, [{}], [{"dtype": "f99", "shape": [2]}], [{"dtype": "f32", "shape": [-2]}]]
)
def test_constants_that_make_no_sense_are_refused(tmp_path: Path, constants: object) -> None:
    said = FACTS.to_json()
    said["entries"][0]["constants"] = constants
    with pytest.raises(ArtifactError, match="make no sense"):
        artifact.facts_of(json.dumps(said).encode(), "x")


def test_a_file_that_is_damaged_or_another_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.dlo", FACTS)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArtifactError):
            artifact.read(path)
    for content in (b"", b"short", whole[1:], whole[:-1], b"\x7fELF" * 100):
        path.write_bytes(content)
        with pytest.raises(ArtifactError):
            artifact.read(path)
    for other in (tmp_path / "none.dlo", tmp_path, Path(os.devnull)):
        with pytest.raises(ArtifactError, match="cannot be read"):
            artifact.read(other)
    with path.open("wb") as file:
        file.truncate(artifact.BYTES_MAX + 1)
    with pytest.raises(ArtifactError, match=f"it has more than {artifact.BYTES_MAX} bytes"):
        artifact.read(path)


def test_an_object_that_does_not_load_is_an_artifact_that_does_not_fit(
    bundle: Bundle, built: Path, tmp_path: Path
) -> None:
    facts = artifact.read(built)
    renamed = replace(facts.entries[0], symbol="dl_entry_99")
    others = {
        "damaged": kept(tmp_path / "a.dlo", facts, b"no object"),
        "symbol": kept(tmp_path / "b.dlo", replace(facts, entries=(renamed,)), built.read_bytes()),
    }
    for path in others.values():
        with pytest.raises(ArtifactError, match=path.name):
            Runtime(bundle, artifacts=[path], programs=["infer"])


@pytest.mark.parametrize(
    "change", [{"entries": [{}]}, {"abi": None}, {"format": 9}, {"flags": 3}, {"entries": None}]
)
def test_facts_that_make_no_sense_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    class Odd(Facts):
        def to_json(self) -> dict[str, object]:
            return {**FACTS.to_json(), **change}

    path = tmp_path / "a.dlo"
    odd = Odd(**{n: getattr(FACTS, n) for n in FACTS.__dataclass_fields__})
    path.write_bytes(artifact.sealed(b"object", odd))
    with pytest.raises(ArtifactError):
        artifact.read(path)


@pytest.mark.parametrize(
    ("facts", "machine", "features", "why"),
    [
        (FACTS, "x86_64", {"asimd"}, "built for aarch64-linux-musl, and this machine is x86_64"),
        (FACTS, "aarch64", {"asimd"}, "it needs sve, which this processor does not have"),
        (replace(FACTS, abi=99), "aarch64", {"asimd", "sve"}, "its ABI is 99"),
        (FACTS, "aarch64", {"asimd", "sve", "more"}, ""),
    ],
)
def test_an_artifact_that_does_not_fit_says_why(
    facts: Facts, machine: str, features: set[str], why: str
) -> None:
    if not why:
        artifact.check(facts, "x.dlo", machine, frozenset(features))
        return
    with pytest.raises(ArtifactError, match=why) as raised:
        artifact.check(facts, "x.dlo", machine, frozenset(features))
    assert raised.value.hint


def test_an_artifact_runs_without_a_compiler(
    bundle: Bundle, built: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Runtime(bundle, programs=["infer"]).infer(bundle.weights, X)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a compiler is asked for")

    monkeypatch.setattr("delian.core.compiler.backends.native.toolchain.toolchain.find", refuse)
    there = Runtime(bundle, artifacts=[built], programs=["infer"])
    np.testing.assert_array_equal(there.infer(bundle.weights, X), wanted)
    assert there.programs["infer"].report.library == built  # type: ignore[attr-defined]


def test_what_an_artifact_has_not_is_compiled(bundle: Bundle, built: Path, tmp_path: Path) -> None:
    there = Runtime(bundle, artifacts=[built], programs=["infer", "evaluate"])
    libraries = {n: p.report.library for n, p in there.programs.items()}  # type: ignore[attr-defined]
    assert libraries["infer"] == built != libraries["evaluate"]
    other = Runtime(made(FedAvg(local=sgd(0.2))), artifacts=[built], programs=["client_update"])
    assert other.programs["client_update"].report.library != built  # type: ignore[attr-defined]


def test_an_artifact_of_the_bundle_for_another_machine_is_an_error(
    bundle: Bundle, built: Path, tmp_path: Path
) -> None:
    facts = artifact.read(built)
    other = kept(tmp_path / "b.dlo", replace(facts, machine="vax", target="vax-linux"), b"never")
    with pytest.raises(ArtifactError, match="built for vax-linux"):
        Runtime(bundle, artifacts=[other], programs=["infer"])


def test_a_target_or_processor_that_there_is_not_is_named() -> None:
    with pytest.raises(DelianError, match="no target `mips`"):
        find_target("mips")
    with pytest.raises(DelianError, match="names no processor"):
        find_target("native", "-o /etc/passwd")
    assert find_target("x86_64_v3") == find_target("x86_64_v3-linux-gnu")


def test_features_are_those_that_the_compiler_was_told_of(toolchain: Toolchain) -> None:
    macros = "#define __AVX2__ 1\n#define __FMA__ 1\n#define OTHER 1\n"
    assert targets.features_of("x86_64", macros) == ("avx2", "fma")
    here = targets.features_here()
    if here is not None:
        assert set(toolchain.features()) <= here


def test_ports_name_what_programs_take(bundle: Bundle) -> None:
    assert chosen(bundle, []) == tuple(n for n in DEVICE_PROGRAMS if n in bundle.programs)
    ports = ports_of(bundle, "client_update")
    names = ("weights", "data_x", "data_y", "data_support", "data_query", "key")
    assert tuple(p.name for p in ports.takes) == names
    assert ports.takes[0].shape == (103,) and ports.takes[0].offsets == (0, 320, 340, 400)
    with pytest.raises(DelianError, match="no program `init`"):
        chosen(bundle, ["init"])


# ---------------------------------------------------------------- plain C

STRICT_C = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1")


def test_every_header_is_plain_c_with_and_without_gnu_extensions(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    from delian.core.compiler.backends.native.c_headers import HEADERS as NAMES

    parts = ["#define DL_PORTABLE\n#define DL_LIST_BYTES 4096"]
    parts += [(HEADERS / f"{name}.h").read_text() for name in (*NAMES, "heap")]
    (tmp_path / "all.c").write_text("\n".join(parts))
    for flags in (("-pedantic-errors",), ("-DDL_NO_GNU",)):
        done = subprocess.run(
            ["cc", "-std=c11", "-w", *flags, "-fsyntax-only", "all.c"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[:2000]


def run_portable(bundle: Bundle, programs: list[str], main: str, folder: Path) -> list[str]:
    """Compiles the C of some programs with a main function of ours; gives its lines."""
    text = portable.portable(bundle, "net", programs=programs)
    assert not any(word in text.source for word in ("malloc(", "printf", "stdio", "stdlib")) or (
        "#define malloc dl_static_take" in text.source
    )
    (folder / "net.c").write_text(text.source)
    (folder / "net.h").write_text(text.header)
    (folder / "main.c").write_text(main)
    for command in (
        ["cc", *STRICT_C, "-c", "net.c"],
        ["cc", "-std=c11", "main.c", "net.o", "-o", "main", "-lm"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]
    used = subprocess.run(["nm", "-u", "net.o"], cwd=folder, capture_output=True, text=True).stdout
    allowed = {"memcpy", "memset", "sqrt", "exp", "log", "pow", "powf", "fmod", "fmodf"}
    allowed |= {"_GLOBAL_OFFSET_TABLE_"}  # where the compiler makes code for any address
    assert set(used.split()) - {"U"} <= allowed
    ran = subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.split()


INFER = """#include "net.h"
#include <stdio.h>
int main(void) {
  static float model[103], x[32], logits[6];
  FILE *f = fopen("model.bin", "rb");
  if (!f || fread(model, 4, 103, f) != 103 || fread(x, 4, 32, f) != 32) return 1;
  if (net_infer(model, x, logits)) return 2;
  for (int i = 0; i < 6; i++) printf("%.9g\\n", logits[i]);
  return 0;
}
"""
UPDATE = """#include "net.h"
#include <stdio.h>
int main(void) {
  static float weights[103];
  static uint8_t x[192], finite;
  static int32_t y[12];
  static uint32_t vector[104];
  const uint32_t key[2] = {1, 2};
  const int64_t support = 8, query = 3;
  float loss;
  FILE *f = fopen("update.bin", "rb");
  if (!f || fread(weights, 4, 103, f) != 103) return 1;
  if (fread(x, 1, 192, f) != 192 || fread(y, 4, 12, f) != 12) return 1;
  for (int run = 0; run < 3; run++)
    if (net_client_update(weights, x, y, &support, &query, key, vector, &loss, &finite)) return 2;
  printf("%.9g %d\\n", loss, finite);
  for (int i = 0; i < 104; i++) printf("%u\\n", vector[i]);
  return 0;
}
"""


def write_inputs(bundle: Bundle, folder: Path) -> None:
    (folder / "model.bin").write_bytes(bundle.weights.tobytes() + X.tobytes())
    (folder / "update.bin").write_bytes(
        bundle.weights.tobytes() + ROWS.x.tobytes() + ROWS.y.tobytes()
    )


def test_plain_c_infers_as_the_native_program_does(bundle: Bundle, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    write_inputs(bundle, tmp_path)
    lines = run_portable(bundle, ["infer"], INFER, tmp_path)
    wanted = Runtime(bundle, "reference").infer(bundle.weights, X)
    np.testing.assert_allclose(np.array(lines, float).reshape(2, 3), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", [None, Maml(inner_steps=2)], ids=["fedavg", "exact-maml"])
def test_plain_c_trains_as_the_native_program_does(
    algorithm: Algorithm | None, tmp_path: Path
) -> None:
    """With exact MAML: its derivative of a loop keeps lists, in the static heap."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    own = made(algorithm)
    write_inputs(own, tmp_path)
    loss, finite, *vector = run_portable(own, ["client_update"], UPDATE, tmp_path)
    wanted = Runtime(own, programs=["client_update"]).client_update(own.weights, list(ROWS), KEY)
    assert finite == "1" and float(loss) == pytest.approx(wanted.loss, rel=1e-5)
    apart = np.array(vector, np.int64).astype(np.uint32).astype(np.int32) - wanted.vector.astype(
        np.int32
    )
    assert np.abs(apart).max() <= 64, "ring elements round what differs in the last bits"


# ---------------------------------------------------------------- other machines

#: Other processors, of 64 bits and of 32. For each zig builds the C library: half a minute.
EMULATORS = {"aarch64-linux-musl": "qemu-aarch64", "armv7-linux-musleabihf": "qemu-arm"}


def run_on(target: str, command: Path, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [EMULATORS[target], str(command), *arguments],
        cwd=command.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_a_command_of_this_machine_says_what_a_smaller_processor_lacks(
    bundle: Bundle, toolchain: Toolchain, tmp_path: Path
) -> None:
    if shutil.which("qemu-x86_64") is None or toolchain.is_zig:
        pytest.skip("qemu-x86_64 (Debian: qemu-user) and a compiler of the system are needed")
    if "avx2" not in (targets.features_here() or ()):
        pytest.skip("this processor lacks nothing that a smaller one would")
    path = tmp_path / "command"
    native = find_target("native")
    path.write_bytes(build_for(bundle, native, static=True, programs=["infer"]).content)
    path.chmod(0o755)
    done = subprocess.run(
        ["qemu-x86_64", "-cpu", "Nehalem", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "AVX2 and FMA: this processor does not have it" in done.stderr
    assert subprocess.run([str(path)], capture_output=True).returncode == 0


@pytest.mark.parametrize("target", EMULATORS)
def test_a_command_for_another_machine_gives_equal_results(
    bundle: Bundle, target: str, tmp_path: Path
) -> None:
    """Within the tolerance of f32, in the profile `fast`."""
    if shutil.which(EMULATORS[target]) is None:
        pytest.skip(f"no {EMULATORS[target]} here (Debian: qemu-user)")
    pytest.importorskip("ziglang")
    command = written_for(bundle, target, "fast", tmp_path)
    update = Runtime(bundle, programs=["client_update"]).client_update(
        bundle.weights, list(ROWS), KEY
    )
    said = run_on(
        *(target, command, "client_update", "weights=weights.f32", *DATA, "key=1,2"),
        "vector:vector.npy",
    )
    apart = np.load(tmp_path / "vector.npy").astype(np.int32) - update.vector.astype(np.int32)
    assert np.abs(apart).max() <= 64, "ring elements round what differs in the last bits"
    assert said["loss"] == pytest.approx(update.loss, rel=1e-6) and said["finite"] is True
    model, logits = trained_and_inferred(bundle, "fast")
    own, there = trained_and_inferred_on(target, command)
    np.testing.assert_allclose(own, model, atol=1e-6)
    np.testing.assert_allclose(there, logits, atol=1e-6)


@pytest.mark.parametrize("target", EMULATORS)
def test_the_profile_reproducible_gives_the_same_bits_on_another_machine(
    bundle: Bundle, target: str, tmp_path: Path
) -> None:
    if shutil.which(EMULATORS[target]) is None:
        pytest.skip(f"no {EMULATORS[target]} here (Debian: qemu-user)")
    pytest.importorskip("ziglang")
    command = written_for(bundle, target, "reproducible", tmp_path, "personalise", "infer")
    for here, there in zip(
        trained_and_inferred(bundle, "reproducible"),
        trained_and_inferred_on(target, command),
        strict=True,
    ):
        np.testing.assert_array_equal(here, there)


DATA = [f"data_{n}=data_{n}.npy" for n in ROWS._fields]


def written_for(
    bundle: Bundle, target: str, profile: Profile, folder: Path, *programs: str
) -> Path:
    """The command for a machine, with files for it beside it."""
    bundle.weights.tofile(folder / "weights.f32")
    np.save(folder / "x.npy", X)
    for name, value in zip(ROWS._fields, ROWS, strict=True):
        np.save(folder / f"data_{name}.npy", value)
    built = build_for(bundle, find_target(target), static=True, profile=profile, programs=programs)
    command = folder / "tiny"
    command.write_bytes(built.content)
    command.chmod(0o755)
    return command


def trained_and_inferred(bundle: Bundle, profile: Profile) -> tuple[Array, Array]:
    """The personal model and its logits, here."""
    there = Runtime(bundle, programs=[])
    programs = {n: bundle.programs[n] for n in ("personalise", "infer")}
    there.programs = dict(compile_module(programs, profile=profile))
    model = there.personalise(bundle.weights, list(ROWS), KEY)
    return model, there.infer(model, X)


def trained_and_inferred_on(target: str, command: Path) -> tuple[Array, Array]:
    run_on(
        *(target, command, "personalise", "weights=weights.f32", *DATA, "key=1,2"),
        "model:own.f32",
    )
    run_on(target, command, "infer", "model=own.f32", "x=x.npy", "logits:logits.npy")
    return np.fromfile(command.parent / "own.f32", "<f4"), np.load(command.parent / "logits.npy")


def test_a_command_refuses_what_does_not_fit(bundle: Bundle, tmp_path: Path) -> None:
    command = tmp_path / "tiny"
    built = build_for(bundle, find_target("native"), static=True, programs=["infer"])
    command.write_bytes(built.content)
    command.chmod(0o755)
    bundle.weights.tofile(tmp_path / "model.f32")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "wide.npy", X.astype(np.float64))
    np.save(tmp_path / "flat.npy", X.reshape(-1))
    np.save(tmp_path / "turned.npy", np.asfortranarray(X))
    (tmp_path / "short.f32").write_bytes(b"1234")
    (tmp_path / "long.f32").write_bytes(bytes(1000))
    (tmp_path / "head.npy").write_bytes(b"\x93NUMPY\1\0\xff\xff")
    model, x = "model=model.f32", "x=x.npy"
    for arguments, why in (
        (("train",), "no such program"),
        (("infer", model), "is missing"),
        (("infer", model, x, x), "given twice"),
        (("infer", model, "z=x.npy"), "neither takes nor gives"),
        (("infer", model, "x=none.npy"), "cannot be opened"),
        (("infer", model, "x=wide.npy"), "of another type"),
        (("infer", model, "x=flat.npy"), "its shape is another"),
        (("infer", model, "x=turned.npy"), "column by column"),
        (("infer", model, "x=head.npy"), "header is too long"),
        (("infer", "model=short.f32", x), "too short"),
        (("infer", "model=long.f32", x), "too long"),
        (("infer", model, x, "logits:no/such/folder"), "cannot be written"),
    ):
        done = subprocess.run([command, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and why in done.stderr and "hint: " in done.stderr, arguments
    told = subprocess.run([command], capture_output=True, text=True, check=True).stdout
    assert "takes model                <f4 (103,)" in told
    assert artifact.read(command).entries[0].name == "infer"


def test_plain_c_compiles_for_a_cortex_m(bundle: Bundle, tmp_path: Path) -> None:
    """Compiled alone: no such machine is emulated here."""
    pytest.importorskip("ziglang")
    text = portable.portable(bundle, "net")
    (tmp_path / "net.c").write_text(text.source)
    (tmp_path / "net.h").write_text(text.header)
    target = ("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m4", "-O2", "-std=c11")
    flags = ("-fwrapv", "-fno-strict-aliasing", "-c", "net.c", "-o", "net.o")
    zig = [sys.executable, "-m", "ziglang", "cc", *target, *flags]
    env = {**os.environ, "ZIG_LOCAL_CACHE_DIR": "zig", "ZIG_GLOBAL_CACHE_DIR": "zig"}
    subprocess.run(zig, cwd=tmp_path, env=env, check=True, capture_output=True)
    content = (tmp_path / "net.o").read_bytes()
    assert content[:5] == b"\x7fELF\1" and content[18] == 40, "32 bits, ARM"
