"""The compiler for native tests."""

from __future__ import annotations

import pytest
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    found = find()
    if found is None:
        pytest.skip("no C compiler here")
    return found
