"""The compiler for native tests, and a cache folder of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs built by these tests go to a folder that goes with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELIAN_CACHE", str(tmp_path_factory.mktemp("delian-cache")))
        yield


@pytest.fixture(scope="session")
def toolchain(own_cache: None) -> Toolchain:
    found = find()
    if found is None:
        pytest.skip("no C compiler here")
    return found
