"""The compiler for native tests."""

from support.native_fixtures import toolchain  # noqa: F401
