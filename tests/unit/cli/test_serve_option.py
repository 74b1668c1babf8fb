"""`--serve BUNDLE`: what an edge and the coordinator run parts of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from delian.cli.fleet.cloud_commands import cloud_settings
from delian.cli.fleet.edge_commands import edge_settings
from delian.cli.settings import Config
from delian.core.common.errors import DelianError
from delian.core.compiler.parse import parse_function
from delian.core.learning.bundle import Bundle, Leaf, Manifest
from delian.core.placement.subgraphs.part_programs import Model


def test_bundles_are_named_by_configuration_too():
    config = Config.model_validate({"edge": {"serve": ["a.bundle"]}, "cloud": {"serve": ["b"]}})
    assert edge_settings(config.edge).serve == (Path("a.bundle").absolute(),)
    assert cloud_settings(config.cloud).serve == (Path("b").absolute(),)


@pytest.mark.parametrize("command", [("edge", "--number", "1"), ("cloud",)])
def test_a_bundle_that_is_not_there_is_said_before_anybody_is_served(delian, tmp_path, command):
    tier, *more = command
    code, out, err = delian(
        *(tier, "run", "--insecure", "--state", tmp_path / "state", "--listen", "127.0.0.1:0"),
        *("--serve", tmp_path / "missing.bundle", *more),
        *(("--set", "cloud.health=") if tier == "cloud" else ()),
        *(("--coordinator", "127.0.0.1:1") if tier == "edge" else ()),
    )
    assert code == 2 and "missing.bundle" in err and not out


def test_a_bundle_without_its_weights_is_refused():
    leaf = Leaf("w", "f32", (2,))
    program = parse_function(
        "fn infer(%0 w: f32[2], %1 x: f32[1,2]) -> (y: f32[1]) {\n"
        "  %2: f32[1] = dot(%1, %0) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}\n"
        "  return %2\n}\n"
    )
    manifest = Manifest("task", "algorithm", (leaf,), (), (0,), (), 1.0, 2, 1.0)
    bundle = Bundle(manifest, dict.fromkeys(manifest.programs, program), np.empty(0, np.float32))
    with pytest.raises(DelianError, match="0 weights for a model of 2"):
        Model.of(bundle)
    assert Model.of(bundle, weights=np.ones(2, np.float32)).leaves[0].shape == (2,)
