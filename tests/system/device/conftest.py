"""Fixtures that unit and system tests of this area share."""

from support.device_fixtures import (  # noqa: F401
    blobs,
    endless,
    hungry,
    make_small_bundle,
    npz_file,
    small_bundle,
)
from support.windowed_device import stored, windowed  # noqa: F401
