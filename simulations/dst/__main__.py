"""`python -m delian.simulations.dst`: see `delian dst`, which is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .check import DEVICES, EDGES, SEEDS
from .seed_report import Asked, main, main_large


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m delian.simulations.dst")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, default=None, help="this one only")
    parser.add_argument("--devices", type=int, default=DEVICES)
    parser.add_argument("--edges", type=int, default=EDGES, help="the coordinator's own is one")
    parser.add_argument("--hostile", action="store_true", help="an attack in each seed")
    parser.add_argument("--resume", type=Path, default=None, help="the report's file, in parts")
    parser.add_argument("--large", action="store_true", help="100,000 devices, without faults")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    return parser.parse_args(given)


if __name__ == "__main__":
    options = arguments(sys.argv[1:])
    if options.large:
        sys.exit(main_large(options.json))
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    asked = Asked(seeds, options.devices, options.edges, options.hostile, options.resume)
    sys.exit(main(asked, options.json))
