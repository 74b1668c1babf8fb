"""`delian build`, `delian cache` and `delian tune`."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.toolchain import artifact
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, sgd

ROWS = SampleSet(
    np.zeros((12, 4), np.float32), np.arange(12, dtype=np.int32) % 3, np.array(8), np.array(3)
)


@pytest.fixture(scope="module")
def made():
    task = Classification("tiny", lambda key: Mlp.init(key, 4, (5,), 3), Samples(4, 1.0))
    return build(
        task,
        FedAvg(local=sgd(0.1)),
        ROWS,
        example=TensorType(DType.F32, (2, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )


@pytest.fixture
def bundle(made, tmp_path, monkeypatch, delian):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.bundle"
    made.save(path)
    return path


def test_an_artifact_is_written_and_says_what_it_needs(delian, bundle, tmp_path):
    code, said, err = delian(
        *("build", bundle, "--program", "infer", "-o", "a.dlo", "--weights", "w.f32", "--json")
    )
    assert (code, err) == (0, "")
    facts = artifact.read(tmp_path / "a.dlo")
    assert said["kind"] == "artifact" and said["features"] == list(facts.features)
    assert list(said["programs"]) == ["infer"] and said["bundle"] == facts.bundle
    assert (tmp_path / "w.f32").stat().st_size == 4 * (4 * 5 + 5 + 5 * 3 + 3)


@pytest.mark.parametrize("static", [True, False])
def test_a_command_that_takes_long_says_why(delian, bundle, monkeypatch, static):
    """As the first for a target, for which zig builds its C library."""

    def slow(*given, **options):
        timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
        for timer in timers:
            timer.join()
        raise DelianError("that was long")

    monkeypatch.setattr("delian.core.learning.export.artifact_build.build_for", slow)
    monkeypatch.setattr("delian.cli.output.SLOW_S", 0.0)
    target = "armv7-linux-musleabihf"
    code, _, err = delian("build", bundle, "--target", target, *(["--static"] * static))
    first = f"delian: compiling for {target}; with zig the first command for a target takes"
    assert code == 2 and err.startswith(first if static else "error: that was long")
    assert err.endswith("error: that was long\n")


def test_plain_c_comes_with_a_header(delian, bundle, tmp_path):
    code, out, _ = delian("build", bundle, "--target", "c", "-o", "My-Net.c")
    assert code == 0 and "my_net_infer" in out
    assert '#include "My-Net.h"' in (tmp_path / "My-Net.c").read_text()
    assert "int my_net_infer(const float *model" in (tmp_path / "My-Net.h").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--target", "mips"], "there is no target `mips`"),
        (["--target", "c", "--static"], "are for machines"),
        (["--target", "c", "-o", "x.txt"], "x.txt is no .c file"),
        (["--cpu", "a b"], "names no processor"),
        (
            ["--target", "x86_64", "--cpu", "i4004"],
            "knows no processor `i4004` of x86_64-linux-gnu",
        ),
        (["--program", "init"], "a device runs no program `init`"),
        (["--program", "infer", "-o", "no/such/x"], "cannot be written"),
    ],
)
def test_wrong_input_is_told(delian, bundle, arguments, why):
    code, _, err = delian("build", bundle, *arguments)
    assert code == 2 and why in err


def test_a_device_is_told_at_once_that_an_artifact_does_not_fit(delian, tmp_path):
    (tmp_path / "bad.dlo").write_bytes(b"no artifact at all, of any kind, and long enough for one")
    code, _, err = delian("device", "run", "--insecure", "--artifact", "bad.dlo")
    assert code == 2 and "bad.dlo: this is no artifact of Delian" in err


def test_tuned_and_compiled_programs_are_listed_and_cleared(delian, bundle):
    code, said, err = delian("tune", bundle, "--program", "infer", "--seconds", "1", "--json")
    assert code == 0 and "untuned: " in err and said["after_ms"] > 0
    code, listed, _ = delian("cache", "ls", "--json")
    assert code == 0 and listed["bytes"] == sum(p["bytes"] for p in listed["programs"]) > 0
    code, out, _ = delian("cache", "ls")
    assert code == 0 and "tuned" in out
    code, cleared, _ = delian("cache", "clear", "--json")
    assert cleared["programs"] == len(listed["programs"]) and cleared["bytes"] == listed["bytes"]
    assert delian("cache", "ls", "--json")[1]["programs"] == []
