"""Public NumPy programs: compiled they give what CPython with NumPy gives, or they are refused.

The programs are fetched, not part of this repository:
`python tests/native/corpus/corpus.py fetch FOLDER`, the same with `--corpus held_out`, then
DELIAN_CORPUS=FOLDER. docs/language.md has the counts of the last run of all of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_HERE = Path(__file__).parent
#: Equal programs of each corpus in a hundred that a change may not go below.
SHARE_MIN = {"developed": 75, "held_out": 65}
#: Programs that are different, by what docs/language.md and docs/vocabulary.md say.
DIFFERENT = {
    "the least of an int and a NumPy float is the wider one": (
        "TheAlgorithms/Python/audio_filters/show_response.py:get_bounds",
    ),
    "singular vectors are NumPy's up to their signs": (
        "lace/vg/vg/core.py:major_axis",
        "lace/vg/vg/core.py:principal_components",
        "darcamo/pyphysim/pyphysim/util/misc.py:least_right_singular_vectors",
    ),
    "the arc cosine of 1 less a last bit": (
        "darcamo/pyphysim/pyphysim/subspace/metrics.py:calc_principal_angles",
    ),
    "the slope is that of the branch that is taken, which holds at this point alone": (
        "dfki-ric/pytransform3d/pytransform3d/rotations/_axis_angle.py:compact_axis_angle",
        "dfki-ric/pytransform3d/pytransform3d/batch_rotations/_quaternion.py:quaternion_slerp_batch",
        "veeresht/CommPy/commpy/filters.py:rcosfilter",
        "aestrivex/bctpy/bct/algorithms/degree.py:strengths_und_sign",
        "aestrivex/bctpy/bct/utils/other.py:threshold_proportional",
        "scikit-fuzzy/scikit-fuzzy/skfuzzy/defuzzify/defuzz.py:bisector",
        "scikit-fuzzy/scikit-fuzzy/skfuzzy/defuzzify/defuzz.py:centroid",
        "scikit-fuzzy/scikit-fuzzy/skfuzzy/defuzzify/defuzz.py:defuzz",
    ),
    "a norm of 0 has no slope, though the branch that is taken only compares it": (
        "dfki-ric/pytransform3d/pytransform3d/rotations/_axis_angle.py:norm_compact_axis_angle",
        "dfki-ric/pytransform3d/pytransform3d/rotations/_axis_angle.py:quaternion_from_compact_axis_angle",
        "dfki-ric/pytransform3d/pytransform3d/rotations/_jacobians.py:left_jacobian_SO3",
        "dfki-ric/pytransform3d/pytransform3d/rotations/_jacobians.py:left_jacobian_SO3_inv",
    ),
}
#: Programs that each corpus has at least.
PROGRAMS_MIN = {"developed": 300, "held_out": 150}


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, _HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


programs = _module("programs")
judge = _module("judge")


@pytest.fixture(scope="module")
def folder() -> Path:
    where = os.environ.get("DELIAN_CORPUS")
    if not where or not Path(where).is_dir():
        pytest.skip(
            "no corpus: run tests/native/corpus/corpus.py fetch FOLDER, set DELIAN_CORPUS=FOLDER"
        )
    return Path(where).resolve()


@pytest.mark.parametrize("corpus", PROGRAMS_MIN)
def test_a_corpus_is_large_enough(corpus: str) -> None:
    assert sum(len(f.functions) for f in programs.manifest(corpus)) >= PROGRAMS_MIN[corpus]


def test_no_repository_is_in_two_corpora() -> None:
    developed, held_out = ({f.repository for f in programs.manifest(c)} for c in programs.CORPORA)
    assert not developed & held_out


@pytest.mark.slow
@pytest.mark.parametrize("corpus", PROGRAMS_MIN)
def test_every_file_is_the_one_that_programs_were_chosen_from(corpus: str, folder: Path) -> None:
    for file in programs.manifest(corpus):
        assert programs.sha256(file.place(folder)) == file.sha256, file.path


@pytest.mark.slow
@pytest.mark.parametrize("corpus", PROGRAMS_MIN)
def test_no_program_is_different_or_slow_to_compile(corpus: str, folder: Path) -> None:
    found: list[dict[str, Any]] = []
    for k, file in enumerate(programs.manifest(corpus)):
        # Native code is made for the programs of each tenth file: it is judged by its own tests.
        how = {"native": k % 10 == 0, "gradients": True}
        found += judge.in_a_process("judge", file, folder, how)["programs"]
    summary = judge.summary(found)
    print(summary)
    known = {program for programs in DIFFERENT.values() for program in programs}
    different = [f for f in found if f["is"] == "different"]
    wrong = [judge.line(f) for f in different if f["program"] not in known]
    assert not wrong, "\n".join(wrong)
    slow = [judge.line(f) for f in found if f.get("seconds", 0) > judge.COMPILE_SECONDS]
    assert not slow, "\n".join(slow)
    equal = sum(f["is"] == "equal" for f in found)
    assert 100 * equal >= SHARE_MIN[corpus] * len(found), summary


# The judge itself


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (1.0, 1.0, ""),
        (np.float64(1.0), 1.0, "float64 for float"),
        (np.ones(3, np.float32), np.ones(3), "float32"),
        (np.ones((3, 1)), np.ones(3), "(3, 1)"),
        ([1.0, 2.0], (1.0, 2.0), "list for tuple"),
        ({"a": 1}, {"b": 1}, "other keys"),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), ""),
        (np.array([1.0, 1.001]), np.array([1.0, 1.0]), "values differ"),
        (np.array([1, 2]), np.array([1, 3]), "other values"),
        ((1.0, [np.float64(2.0)]), (1.0, [2.0]), "result[1][0]"),
    ],
)
def test_the_judge_sees_values_types_shapes_and_classes(got: Any, want: Any, words: str) -> None:
    said = judge.difference(got, want)
    assert words in said and bool(said) == bool(words)
