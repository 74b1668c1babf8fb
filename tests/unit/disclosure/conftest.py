"""A generator of random programs."""

from support.program_fixtures import (  # noqa: F401
    random_programs,
)
