"""Roles of a model's leaves by patterns."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.heads import personal_head
from delian.core.learning.leaf_roles import Roles, check_patterns, leaf_names, roles_of

LEAF = np.zeros(1, np.float32)
MODEL = {"body": {"weight": LEAF, "bias": LEAF}, "head": {"weight": LEAF, "bias": LEAF}}


def test_patterns_are_of_dotted_names() -> None:
    assert leaf_names(MODEL) == ["body.bias", "body.weight", "head.bias", "head.weight"]
    roles = roles_of(MODEL, Roles(frozen=("body.*",), personal=("*.bias",)))
    assert roles == ("frozen", "frozen", "personal", "shared")


def test_the_last_pattern_that_fits_decides() -> None:
    roles = roles_of(MODEL, Roles(frozen=("*", "!head.*")))
    assert roles == ("frozen", "frozen", "shared", "shared")


def test_an_algorithm_keeps_leaves_personal_too() -> None:
    roles = roles_of(MODEL, Roles(frozen=("body.bias",)), personal_head(MODEL, 2))
    assert roles == ("frozen", "shared", "personal", "personal")


def test_a_pattern_that_fits_nothing_is_an_error_with_the_names() -> None:
    with pytest.raises(DelianError, match=r"'bdy\.\*'") as caught:
        roles_of(MODEL, Roles(frozen=("bdy.*",)))
    assert "body.bias" in str(caught.value)


def test_something_has_to_be_shared() -> None:
    with pytest.raises(DelianError, match="nothing would be trained together"):
        roles_of(MODEL, Roles(frozen=("*",)))


def test_patterns_have_limits() -> None:
    check_patterns(["*"] * 256)
    for patterns in (["*"] * 257, ["x" * 201]):
        with pytest.raises(DelianError, match="patterns"):
            check_patterns(patterns)
