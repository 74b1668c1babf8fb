"""`delian partition` and `delian profile`: where a bundle is cut, in words and in files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.core.compiler.api import module
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Dense, Mlp
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.placement_plan import PlacementPlan
from delian.core.placement.cut.profile import NodeProfile, Sample

ROWS = np.random.default_rng(1).normal(size=(20, 2000)).astype(np.float32)


@pytest.fixture(scope="module")
def made():
    """A model that makes its input small, and then much of it."""
    return built(lambda key: Mlp.init(key, 2000, (8, 3000), 3))


def built(init):
    data = SampleSet(ROWS, np.arange(20) % 3, np.array(20), np.array(0))
    return build(
        Classification("tiny", init, Samples(4, 1.0)),
        FedAvg(),
        data,
        example=TensorType(DType.F32, (4, 2000)),
        clip=5.0,
        clients_max=4,
        weight_max=20.0,
        seed=1,
    )


@module
class Own:
    """A model of a user's own: what is no file of the library is a user's."""

    first: Dense
    last: Dense

    def __call__(self, x, weight):
        hidden = np.tanh(self.first(x))
        return self.last(hidden)


@pytest.fixture(scope="module")
def own():
    def init(key):
        return Own(Dense.init(key, 2000, 8), Dense.init(key, 8, 3))

    return built(init)


@pytest.fixture
def files(tmp_path, made, own):
    made.save(tmp_path / "tiny.bundle")
    own.save(tmp_path / "own.bundle")
    samples = {
        "loop": (Sample((1000.0, 10.0, 4.0), 4e-5),),
        "product": (Sample((8.0, 10.0, 10.0, 1.0), 1.6e-5),),
    }
    node = NodeProfile(
        *("cloud", "some processor", "2026-01-01", 1, samples, {}, 1e9, None, 1e-6, 0.0),
        encode_s={"f32": 0.0, "f16": 1e-9, "i8": 1e-9},
    )
    for name, factor in (("device", 50.0), ("edge", 4.0), ("cloud", 1.0)):
        (tmp_path / f"{name}.json").write_text(node.scaled(factor, name).to_json())
    return ["tiny.bundle", "--device", "device.json", "--edge", "edge.json"]


def test_the_best_cut_is_told_with_times_bytes_and_what_else_there_is(delian, files):
    more = ["--link-device-edge", "1Mbit/s,1ms", "--cloud", "cloud.json"]
    code, said, err = delian(
        "partition", "explain", *files, *more, "--what-if", "bandwidth=1Gbit/s", "--json"
    )
    assert (code, err) == (0, "")
    best = said["best"]
    parts = [*best["tiers_s"], *best["links_s"]]
    assert best["latency_s"] == pytest.approx(sum(parts))
    assert best["up_bytes"][0] == sum(
        c["bytes"] for c in best["crossings"] if c["up"] and c["link"] == 0
    )
    assert best["cost"] <= said["runner_up"]["cost"]
    assert best["cost"] <= min(one["cost"] for one in said["alone"].values())
    assert said["what_if"]["best"]["latency_s"] < best["latency_s"]
    covered = [n for o in best["operations"] for n in o["numbers"]]
    assert len(covered) == len(set(covered)) == sum(tier >= 0 for tier in best["labels"])


def test_people_see_tiers_links_and_lines_of_source(delian, files):
    code, said, err = delian("partition", "explain", *files, "--link-device-edge", "1Mbit/s,1ms")
    assert (code, err) == (0, "")
    for words in ("best cut:", "on the device:", "second best:", "edge alone:", ".py:", "1 Mbit/s"):
        assert words in said


def test_of_a_user_s_model_the_user_s_lines_are_told(delian, files):
    code, said, _ = delian("partition", "explain", "own.bundle", *files[1:], "--json")
    assert code == 0
    name, first = "test_partition_commands.py", Own.__call__.__code__.co_firstlineno + 1
    places = {place for o in said["best"]["operations"] for place in o["places"]}
    assert {f"{name}:{first}", f"{name}:{first + 1}"} <= places
    assert not {place for place in places if place.startswith("layers.py")}
    assert all(c["from"] == "x" or c["from"].startswith(name) for c in said["best"]["crossings"])


def test_a_program_timed_here_counts_for_tiers_with_this_processor(delian, files, tmp_path):
    from delian.simulations.runs.host_facts import cpu_name

    body = json.loads((tmp_path / "edge.json").read_text())
    (tmp_path / "edge.json").write_text(json.dumps({**body, "cpu": cpu_name()}))
    code, said, err = delian("partition", "explain", *files, "--measure", "--json")
    assert (code, err) == (0, "")
    assert [p["measured"] for p in said["profiles"]] == [False, True]


def test_energy_and_the_slowest_stage_are_told_where_they_are_asked_for(delian, files, tmp_path):
    body = json.loads((tmp_path / "device.json").read_text())
    given = {**body, "joules_per_second": 3.0, "joules_per_byte": 1e-7}
    (tmp_path / "device.json").write_text(json.dumps(given))
    asked = ("--objective", "0.5*energy+0.5*throughput", "--operations")
    code, said, err = delian("partition", "explain", *files, *asked)
    assert (code, err) == (0, "") and "slowest stage" in said and " J\n" in said


def test_an_input_that_must_stay_and_bytes_on_the_wire(delian, files):
    links = ("--link-device-edge", "1Gbit/s,0.1ms")
    _, free, _ = delian("partition", "explain", *files, *links, "--json")
    assert free["best"]["up_bytes"] == [4 * 4 * 2000]
    wanted = (*links, "--pin", "input", "--wire", "i8", "--json")
    _, kept, _ = delian("partition", "explain", *files, *wanted)
    assert 0 < kept["best"]["up_bytes"][0] < 4 * 2000
    assert {c["wire"] for c in kept["best"]["crossings"] if c["up"]} == {"i8"}
    assert "refused" in kept["alone"]["edge"]


def test_a_plan_is_written_for_every_bandwidth(delian, files, tmp_path, made):
    code, said, err = delian("partition", "plan", *files, "-o", "plan.json", "--json")
    assert (code, err) == (0, "")
    plan = PlacementPlan.from_json((tmp_path / "plan.json").read_bytes())
    assert plan.bundle == made.content_hash() and plan.program == "infer"
    assert len(plan.pieces) == len(said["pieces"]) >= 2
    for piece, row in zip(plan.pieces, said["pieces"], strict=True):
        cut = Cut.from_bytes(piece.cut)
        assert (cut.bundle, cut.program, cut.digest()) == (plan.bundle, "infer", row["cut"])
    code, said, _ = delian("partition", "plan", *files, "-o", "plan.json", "--from", "1Mbit/s")
    assert code == 0 and "at the middle" in said and "1 Mbit/s" in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--device", "absent.json"], "absent.json: cannot be read"),
        (["--device", "tiny.bundle"], "not JSON"),
        (["--program", "nothing"], "no program `nothing`"),
        (["--link-device-edge", "5Mbit,20ms"], "not a link"),
        (["--objective", "beauty"], "not an objective"),
        (["--objective", "0*latency"], "without weight"),
        (["--objective", "energy"], "nothing of energy"),
        (["--wire", "f8"], "not a wire"),
        (["--pin", "y"], "no input 'y'"),
        (["--pin", "layers.py:99999=edge"], "no operation is from that line"),
        (["--pin", "input=moon"], "no tier 'moon'"),
        (["--memory", "device=lots"], "not a size"),
        (["--memory", "cloud=1GB"], "not a tier"),
        (["--what-if", "weather=rain"], "not known"),
        (["--measure"], "no profile is of this processor"),
        (["--memory", f"device={'9' * 400}M"], "not a size"),
        (["--link-device-edge", "1e-300bit/s,1ms"], "a link of 1.25e-301 bytes/s"),
        (["--device", "part.json"], "part.json: not a node's profile: `samples` is missing"),
        (["--device", "folder"], "folder: cannot be read"),
        (["--device", "deep.json"], "deep.json: not JSON"),
    ],
)
def test_mistakes_are_told(delian, files, tmp_path, given, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "part.json").write_text('{"format": 1}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    code, _, err = delian("partition", "explain", *files, *given)
    assert code == 2 and words in err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--from", "1Gbit/s", "--to", "1Mbit/s"], "--from 1Gbit/s is more than --to 1Mbit/s"),
        (["--from", "0bit/s"], "a link of 0.0 bytes/s"),
        (["--to", "1e12Gbit/s"], "a link of"),
        (["--out", ""], "cannot be written"),
        (["--out", "device.json/plan.json"], "cannot be written"),
    ],
)
def test_a_plan_that_cannot_be_is_told_and_nothing_is_written(
    delian, files, tmp_path, given, words
):
    before = sorted(tmp_path.iterdir())
    code, said, err = delian("partition", "plan", *files, "--out", "plan.json", *given)
    assert (code, said) == (2, "") and words in err and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--watts", "inf"], "--watts"),
        (["--memory", "9" * 400], "not a size"),
        (["--name", "n" * 1000], "--name of 1000 characters"),
        (["--out", "folder/node.json"], "folder/node.json: cannot be written"),
        (["--bundle", "device.json"], "device.json: not a bundle"),
    ],
)
def test_what_a_profile_cannot_be_made_of_is_told_before_anything_is_measured(
    delian, files, monkeypatch, given, words
):
    from delian.core.placement.cut import measure

    monkeypatch.setattr(measure, "measure_node", lambda **facts: pytest.fail("it measures"))
    code, said, err = delian("profile", *given)
    assert (code, said) == (2, "") and words in err


def test_bytes_that_no_tier_has_are_told(delian, files):
    code, _, err = delian("partition", "explain", *files, "--memory", "device=1KB,edge=1KB")
    assert code == 2 and "memory" in err


def test_a_bundle_that_is_none_is_told(delian, files):
    code, _, err = delian("partition", "explain", "device.json", *files[1:])
    assert code == 2 and "device.json" in err


def test_what_memory_there_is_comes_from_the_system(tmp_path):
    from delian.cli.placement.profile_commands import memory_limit

    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  8192 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path, tmp_path) == 8 << 20
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory_limit(tmp_path, tmp_path) == 1 << 20
    assert memory_limit(tmp_path / "absent", tmp_path / "absent") is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/slice/unit\n")
    (tmp_path / "slice" / "unit").mkdir(parents=True)
    (tmp_path / "slice" / "unit" / "memory.max").write_text("max\n")
    (tmp_path / "slice" / "memory.max").write_text("65536\n")
    assert memory_limit(tmp_path, tmp_path) == 65536


def test_a_profile_is_told_and_written(delian, files, tmp_path, monkeypatch):
    """What is measured is not looked at here: the measuring has tests of its own."""
    from delian.core.placement.cut import measure

    given = NodeProfile.from_json((tmp_path / "edge.json").read_bytes())
    monkeypatch.setattr(measure, "measure_node", lambda **facts: given)
    code, said, err = delian("profile", "-o", "own.json", "--watts", "3", "--joules-per-mb", "0.5")
    assert (code, err) == (0, "") and "product" in said and "own.json" in said
    again = NodeProfile.from_json((tmp_path / "own.json").read_bytes())
    assert (again.joules_per_second, again.joules_per_byte) == (3.0, 5e-7)
    code, said, _ = delian("profile", "--json")
    assert json.loads(json.dumps(said))["classes"]["loop"]["samples"] == 1


def test_a_link_to_nobody_is_told(delian):
    code, _, err = delian("profile", "--link", "edge-1@mqtt://127.0.0.1:1883")
    assert code == 2 and "gRPC" in err


@pytest.mark.parametrize(
    ("rows", "plan", "more", "words"),
    [
        ("noise.npy", "plan.json", [], "noise.npy is not an .npy file"),
        ("tiny.bundle", "plan.json", [], "tiny.bundle is not an .npy file"),
        ("folder", "plan.json", [], "folder: cannot be read"),
        ("rows.npy", "device.json", [], "device.json: not a plan: `bundle` is missing"),
        ("rows.npy", "straight.json", [], "straight.json: a plan without a link"),
        ("rows.npy", "folder", [], "folder: cannot be read"),
        ("rows.npy", "plan.json", ["--due", "inf"], "--due"),
    ],
)
def test_what_a_device_cannot_ask_is_told(delian, files, tmp_path, rows, plan, more, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "noise.npy").write_bytes(bytes(range(256)))
    np.save(tmp_path / "rows.npy", ROWS)
    delian("partition", "plan", *files, "--out", "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    body["links"] = []
    for piece in body["pieces"]:
        piece.update(up=[], down=[], wires_s=[], tiers=[1.0], memory=[1])
    (tmp_path / "straight.json").write_text(json.dumps(body))
    ask = ("device", "ask", "tiny.bundle", rows, "--plan", plan, "--insecure", "--number", 1)
    code, said, err = delian(*ask, *more)
    assert (code, said) == (2, "") and words in err


def test_results_are_written_by_the_name_that_was_given_or_not_at_all(tmp_path):
    from delian.cli.programs.row_files import write_rows
    from delian.core.common.errors import DelianError

    write_rows(tmp_path / "out", ROWS)
    assert np.array_equal(np.load(tmp_path / "out"), ROWS)
    for path in (tmp_path, tmp_path / "absent" / "out.npy"):
        with pytest.raises(DelianError, match="cannot be written"):
            write_rows(path, ROWS)
    assert [f.name for f in tmp_path.iterdir()] == ["out"]
