"""Names of a package that are loaded when they are asked for."""

from __future__ import annotations

import pytest
from delian.core import learning
from delian.core.learning import nn


@pytest.mark.parametrize("package", [learning, nn])
def test_every_public_name_is_there_and_told(package):
    told = dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in told
        assert vars(package)[name] is getattr(package, name), "asked for once"


@pytest.mark.parametrize("package", [learning, nn])
def test_a_name_that_is_not_there_is_refused_as_any_module_would(package):
    with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing
