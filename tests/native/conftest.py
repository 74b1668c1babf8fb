"""The tables of primitives and the generators of random programs."""

from support.program_fixtures import (  # noqa: F401
    differential,
    primitive_names,
    pytest_generate_tests,
    pytest_pyfunc_call,
    random_programs,
)
