"""A scenario is one file; every mistake in it is answered with a place, a reason and a way out."""

from __future__ import annotations

import re

import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import algorithm_registry
from delian.core.learning.plan_settings import RenamedWarning
from delian.simulations.processes.processes import Shape, fitted, fitting
from delian.simulations.scenario.datasets import load_data, with_data
from delian.simulations.scenario.scenario import Fleet, Scenario
from delian.simulations.scenario.scenario_file import bundled, load, override, with_algorithm
from delian.simulations.scenario.scenario_keys import reference
from delian.simulations.scenario.settings_table import Table
from delian.simulations.scenario.toml_lines import key_locations

GOOD = """\
name = "mine"
rounds = 3

[data]
source = "digits"
held_out_devices = 2

[model]
name = "mlp"
hidden = [16]

[algorithm]
name = "fomaml"
inner_steps = 2

[fleet]
devices = 12

[network.device_edge]
loss = 0.1
"""


@pytest.fixture
def mistake(tmp_path):
    """The message about the good scenario with one thing replaced."""

    def make(old: str, new: str) -> str:
        assert old in GOOD
        path = tmp_path / f"s{abs(hash((old, new)))}.toml"
        path.write_text(GOOD.replace(old, new))
        with pytest.raises(DelianError) as caught:
            load(path)
        return str(caught.value).replace(str(path), "FILE")

    return make


def write(tmp_path, text=GOOD):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load(path)


def test_a_file_s_values_and_the_defaults_around_them(tmp_path):
    scenario = write(tmp_path)
    assert (scenario.rounds, scenario.seed, scenario.fleet.edges) == (3, 1, 3)
    assert scenario.model.hidden == (16,)
    assert scenario.network.device_edge.loss == 0.1
    assert scenario.algorithm.inner_steps == 2


@pytest.mark.parametrize("name", sorted(bundled()))
def test_every_bundled_scenario_is_valid_under_every_algorithm(name):
    scenario = load(name)
    assert scenario.name == name and scenario.description
    for algorithm in algorithm_registry.names():
        assert with_algorithm(scenario, algorithm).algorithm.name == algorithm


def test_the_default_is_sixty_devices_behind_three_edges():
    scenario = load()
    assert (scenario.fleet.devices, scenario.fleet.edges, scenario.rounds) == (60, 3, 30)
    assert scenario.algorithm.name == "fomaml"


@pytest.mark.parametrize("model", [Scenario, Fleet])
def test_the_tables_that_stand_for_absent_ones_are_those_that_validation_makes(model):
    tables = {n: f.default for n, f in model.model_fields.items() if isinstance(f.default, Table)}
    assert tables
    for name, table in tables.items():
        validated = type(table).model_validate({})
        assert table == validated and table.model_fields_set == set(), name
        assert repr(table) == repr(validated)


def test_a_misspelt_key_is_answered_with_file_line_and_the_nearest_key(mistake):
    message = mistake("inner_steps = 2", "inner_stepz = 2")
    assert message.startswith("FILE:14:1: there is no key `inner_stepz` in [algorithm] of fomaml")
    assert "inner_stepz = 2\n      | ^^^^^^^^^^^" in message
    assert "did you mean `inner_steps`?" in message


def test_a_key_of_another_algorithm_is_refused(mistake):
    message = mistake("inner_steps = 2", "proximal_mu = 0.1")
    assert "there is no key `proximal_mu` in [algorithm] of fomaml" in message
    assert "knows: name, batch_size" in message


def test_a_key_in_the_wrong_table_is_answered_with_where_it_belongs(mistake):
    message = mistake("rounds = 3", "rounds = 3\nloss = 0.2")
    assert "did you mean `network.device_edge.loss`?" in message


def test_a_misspelt_table(mistake):
    message = mistake("[network.device_edge]", "[network.device_egde]")
    assert message.startswith("FILE:19:2: there is no key `device_egde` in [network]")
    assert "did you mean `device_edge`?" in message


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("rounds = 3", "rounds = 0", "2:1: `rounds` cannot be 0", "whole number from 1 to 1_000_"),
        ("rounds = 3", "rounds = true", "2:1: `rounds` cannot be true", "a whole number from 1"),
        ("rounds = 3", 'rounds = "3"', '2:1: `rounds` cannot be "3"', "a whole number from 1"),
        ("loss = 0.1", "loss = 1.0", "20:1: `network.device_edge.loss` cannot be 1.0", "below 1"),
        ("loss = 0.1", "loss = nan", "20:1: `network.device_edge.loss` cannot be nan", "below 1"),
        ("[16]", '[16, "x"]', '10:1: `model.hidden` cannot be "x"', "a list of whole numbers"),
        ('"mlp"', '"mpl"', '9:1: `model.name` cannot be "mpl"', "did you mean `mlp`?"),
        ('"digits"', '"dogits"', '5:1: `data.source` cannot be "dogits"', "mean `digits`?"),
        ('name = "fomaml"', 'nme = "x"', "12:2: `algorithm.name` is missing", "one of anil"),
        ('name = "mine"', 'name = "a/b"', '1:1: `name` cannot be "a/b"', "text"),
        ("devices = 12", "devices = 2", "6:1: `data.held_out_devices`: none of the 2", "=0"),
        ('"mlp"\nhidden = [16]', '"lstm"', "9:1: `model.name`: the lstm model does not", "change"),
    ],
)
def test_a_value_out_of_range_is_answered_with_the_range(mistake, old, new, place, hint):
    message = mistake(old, new)
    assert message.startswith(f"FILE:{place}")
    assert hint in message.partition("hint:")[2]


def test_a_missing_key_has_no_line_to_point_at(mistake):
    assert mistake("rounds = 3\n", "").startswith("FILE: `rounds` is missing")


def test_broken_toml_is_answered_with_line_and_column(mistake):
    message = mistake("rounds = 3", "rounds = = 3")
    assert message.startswith("FILE:2:10: Invalid value")


def test_several_mistakes_are_all_told(mistake):
    message = mistake("rounds = 3", "rounds = 0\nsed = 1\nepochs = 1")
    assert all(part in message for part in ("`rounds`", "`sed`", "mean `seed`", "`epochs`"))


def test_every_key_of_a_toml_file_is_found_where_it_stands():
    text = '''# name = 1
a = """
b = 2
"""
"quoted key" = [
  1, # ] c = 3
  2,
]
d.e = {f = 1}
[t."u.v"] # comment
  g = 'x = "'
[[list]]
h=1
'''
    places = {path: (loc.line, loc.column) for path, loc in key_locations(text, "f").items()}
    assert places == {
        ("a",): (2, 0),
        ("quoted key",): (5, 0),
        ("d", "e"): (9, 0),
        ("t", "u.v"): (10, 1),
        ("t", "u.v", "g"): (11, 2),
        ("list",): (12, 2),
        ("list", "h"): (13, 0),
    }


def test_overrides_are_judged_together_and_the_culprit_is_named(tmp_path):
    scenario = write(tmp_path)
    changed = override(scenario, ["fleet.devices=8", "round.cohort=4", "round.reports_min=2"])
    assert (changed.fleet.devices, changed.round.cohort) == (8, 4)
    with pytest.raises(DelianError, match=r"^--set fleet.dropuot=1: there is no key `dropuot`"):
        override(scenario, ["rounds=2", "fleet.dropuot=1"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds", "this is not key=value"),
        ("=3", "this is not key=value"),
        ("rounds=many", '`rounds` cannot be "many"'),
        ("rounds.x=1", "`rounds` is a value, not a table"),
        ("algorithm.name=fedavgg", "there is no algorithm `fedavgg`"),
    ],
)
def test_a_wrong_override_is_told(tmp_path, setting, message):
    with pytest.raises(DelianError, match=re.escape(message)):
        override(write(tmp_path), [setting])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["round.buffer=5"], "only a buffered run reads it"),
        (["round.mode=buffered", "round.buffer=9", "round.concurrency=8"], "never have 9 updates"),
        (["evaluation.patience=2"], "only a federated evaluation reads it"),
        (
            ["round.mode=buffered", "evaluation.federated=true", "evaluation.rollback_worse=0.5"],
            "rollback is not supported in a buffered run",
        ),
        (["evaluation.target=90"], "an accuracy is at most 1"),
    ],
)
def test_what_a_mode_does_not_read_is_refused(tmp_path, settings, message):
    with pytest.raises(DelianError, match=message):
        override(load("digits"), settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["privacy.cohort_min=7"], "a sum of 6 devices, and the minimum of a sum is 7"),
        (["round.cohort=2"], "a sum of 2 devices"),
        (["round.cohort=9", "round.over_selection=9.9", "round.mode=synchronous"], None),
        (["round.mode=buffered", "round.concurrency=2000"], "masks are for at most 1000"),
        (
            ["privacy.corrupt=0.5", "privacy.dropout=0.3"],
            "corrupt + 2 * dropout may be 0.9 at most",
        ),
        (["evaluation.federated=true", "evaluation.cohort=2"], "a sum of 2 devices"),
    ],
)
def test_what_cannot_be_masked_is_refused(tmp_path, settings, message):
    masked = override(write(tmp_path), ["privacy.aggregation=secure", "round.cohort=6"])
    if message is None:
        assert override(masked, settings).privacy.aggregation == "secure"
        return
    with pytest.raises(DelianError, match=re.escape(message)):
        override(masked, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["round.mode=synchronous"], "for a buffered run"),
        (["privacy.aggregation=plain"], "only masked rounds read it"),
        (["privacy.cohort_min=7"], "the minimum of a sum is 7"),
        (["round.concurrency=701"], "masks are for at most 700"),
        (["privacy.helpers=4"], "privacy.helpers"),
        (["privacy.aggregation=secure"], None),
    ],
)
def test_what_helpers_cannot_unmask_is_refused(tmp_path, settings, message):
    helped = override(
        write(tmp_path), ["round.mode=buffered", "round.cohort=6", "privacy.helpers=2"]
    )
    if message is None:
        assert override(helped, settings).privacy.helpers == 2
        return
    with pytest.raises(DelianError, match=re.escape(message)):
        override(helped, settings)


def test_as_many_devices_have_a_task_at_once_as_the_mode_says():
    digits = load("digits")
    assert override(digits, ["round.cohort=10", "round.over_selection=1.3"]).plan().selected == 13
    buffered = override(digits, ["round.mode=buffered", "round.buffer=7"])
    assert buffered.plan().selected == 14
    assert override(buffered, ["round.concurrency=30"]).plan().selected == 30


def test_text_values_may_leave_their_quotes_out(tmp_path):
    changed = override(write(tmp_path), ["data.partition=iid", 'description="a b"', "name=x1"])
    assert (changed.data.partition, changed.description, changed.name) == ("iid", "a b", "x1")


def test_another_algorithm_takes_the_scenario_s_own_settings_for_it(tmp_path):
    text = GOOD + "\n[alternatives.fedavg]\nepochs = 7\n"
    scenario = write(tmp_path, text)
    assert with_algorithm(scenario, "fedavg").algorithm.epochs == 7
    # Without such a table what both know is kept, and the rest is the algorithm's default.
    maml = with_algorithm(scenario, "maml").algorithm
    assert (maml.name, maml.inner_steps) == ("maml", 2)
    assert override(scenario, ["algorithm.name=maml"]).algorithm == maml


def test_another_model_or_source_leaves_the_keys_that_it_does_not_know(tmp_path):
    scenario = override(write(tmp_path), ["model.name=mlp", "model.hidden=[5]"])
    changed = override(scenario, ["model.hidden=7", "model.name=cnn"])
    assert (changed.model.name, changed.model.hidden) == ("cnn", 7)
    own = override(scenario, ["model.name=python", "model.file=a.py"])
    assert override(own, ["model.name=cnn"]).model.hidden == 512
    moved = override(scenario, ["data.source=synthetic"])
    assert moved.data.source == "synthetic"
    with pytest.raises(DelianError, match=r"there is no key `file` in \[model\] of cnn"):
        override(scenario, ["model.name=cnn", "model.file=a.py"])


def test_episodes_that_train_have_as_many_classes_as_those_that_judge_or_more(tmp_path):
    few = with_algorithm(load("omniglot-characters"), "protonet")
    assert override(few, ["algorithm.training_ways=20"]).algorithm.training_ways == 20
    with pytest.raises(DelianError, match="which is 5"):
        override(few, ["algorithm.training_ways=4"])
    with pytest.raises(DelianError, match="digits has rows"):
        override(write(tmp_path), ["algorithm.name=protonet", "algorithm.training_ways=20"])
    with pytest.raises(DelianError, match="no key `training_ways`"):
        override(few, ["algorithm.name=maml", "algorithm.training_ways=20"])


def test_a_mistake_in_an_alternative_is_told(mistake):
    message = mistake("[fleet]", "[alternatives.fedavg]\nepoch = 1\n\n[fleet]")
    assert message.startswith("FILE:17:1: there is no key `epoch` in [alternatives.fedavg]")


def test_files_that_are_no_scenarios(tmp_path):
    with pytest.raises(DelianError, match="there is no scenario file digts") as caught:
        load("digts")
    assert "did you mean `digits`?" in caught.value.hint
    with pytest.raises(DelianError, match="is a folder"):
        load(tmp_path)
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DelianError, match="is not UTF-8"):
        load(path)
    path.write_text(f"rounds = {'[' * 5000}{']' * 5000}\n")
    with pytest.raises(DelianError, match=r"binary\.toml: arrays in arrays, too deep"):
        load(path)
    with pytest.raises(DelianError, match="rounds"):
        override(load(), [f"rounds={'[' * 5000}"])


def test_a_data_path_is_relative_to_the_scenario_and_a_report_shows_its_name_only(tmp_path):
    text = GOOD.replace('"digits"', '"npz"\npath = "sub/mine.npz"')
    scenario = write(tmp_path, text)
    assert scenario.data_file == tmp_path / "sub" / "mine.npz"
    assert scenario.to_json()["data"]["path"] == "mine.npz"
    with pytest.raises(DelianError, match="there is no data file"):
        load_data(scenario)


def test_a_scenario_without_its_data_says_how_to_give_it():
    with pytest.raises(DelianError, match="omniglot needs a data file") as caught:
        load_data(load("omniglot"))
    assert "--data" in caught.value.hint


def test_what_nobody_set_follows_a_small_fleet_and_a_larger_one_again(tmp_path):
    text = GOOD.replace("devices = 12", "devices = 4")
    small = write(tmp_path, text.replace("held_out_devices = 2", "held_out_devices = 1"))
    assert (small.fleet.edges, small.round.cohort) == (3, 3)
    assert small.to_json()["round"]["cohort"] == 3
    two = override(small, ["fleet.devices=2"])
    assert (two.fleet.edges, two.round.cohort, two.network.device_edge.loss) == (2, 1, 0.1)
    many = override(two, ["fleet.devices=50"])
    assert (many.fleet.edges, many.round.cohort) == (3, 10)
    assert many == override(small, ["fleet.devices=50"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["round.cohort=7"], "round.cohort=4"),
        (["fleet.edges=6"], "fleet.edges=5"),
        (
            ["fleet.edges=6", "round.cohort=9", "round.reports_min=8"],
            "fleet.edges=5 round.cohort=4 round.reports_min=4",
        ),
        (["data.held_out_devices=5", "round.cohort=9"], "data.held_out_devices=0 round.cohort=5"),
        (["round.reports_min=6"], "round.reports_min=4"),
    ],
)
def test_what_was_set_is_refused_with_what_fits(tmp_path, settings, said):
    """The keys that a small fleet asks for, all of them at once."""
    text = GOOD.replace("held_out_devices = 2", "held_out_devices = 1")
    scenario = write(tmp_path, text)
    with pytest.raises(DelianError) as caught:
        override(scenario, ["fleet.devices=5", *settings])
    fitting = re.findall(r"--set (\S+=\d+)", caught.value.hint)
    assert fitting == said.split()
    override(scenario, ["fleet.devices=5", *settings, *fitting])


def test_a_number_of_devices_that_nothing_would_heed_is_refused():
    with pytest.raises(DelianError, match="omniglot makes its devices of alphabets and drawers"):
        override(load("omniglot"), ["fleet.devices=10"])


def test_data_of_one_s_own_takes_the_place_of_bundled_data(tmp_path):
    import numpy as np

    path = tmp_path / "own.npz"
    labels = np.arange(200) % 3
    np.savez(path, x=np.ones((200, 5), np.float32), y=labels, device=np.arange(200) % 20)
    scenario = with_data(load(), path)
    assert (scenario.data.source, scenario.data.partition) == ("npz", "natural")
    scenario = override(scenario, ["data.held_out_devices=2", "round.cohort=5"])
    federation = load_data(scenario, path)
    assert (len(federation.devices), federation.classes) == (20, 3)


def test_what_nobody_set_follows_the_devices_of_the_data(tmp_path):
    import numpy as np
    from delian.simulations.runs.simulate import simulate

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y, device=np.arange(40) % 2)
    text = GOOD.partition("[fleet]")[0].replace("held_out_devices = 2", 'path = "own.npz"')
    text = text.replace('"digits"', '"npz"\npartition = "natural"\nmin_examples = 2')
    result = simulate(write(tmp_path, text), backend="reference")
    assert [(r.selected, r.reported) for r in result.rounds] == [(2, 2)] * 3
    assert (result.scenario.fleet.edges, result.scenario.round.cohort) == (2, 2)
    asked = override(write(tmp_path, text), ["round.cohort=3"])
    with pytest.raises(DelianError, match="a round of 3 devices, and the data has 2 that train"):
        simulate(asked, backend="reference")


def test_a_round_larger_than_the_data_s_devices_is_told(tmp_path):
    import numpy as np

    path = tmp_path / "own.npz"
    np.savez(path, x=np.ones((40, 5), np.float32), y=np.arange(40) % 2, device=np.arange(40) % 4)
    scenario = override(with_data(load(), path), ["data.held_out_devices=0", "data.min_examples=2"])
    with pytest.raises(
        DelianError, match="a round of 12 devices, and the data has 4 that train"
    ) as caught:
        load_data(scenario, path)
    settings = re.findall(r"--set (\S+=\d+)", caught.value.hint)
    assert len(load_data(override(scenario, settings), path).devices) == 4


def test_every_key_has_a_meaning_and_a_range():
    for heading, meaning, keys in reference():
        assert meaning, heading
        for key in keys:
            assert key.meaning and key.allowed, key.path
            assert "a value" not in key.allowed, key.path


def test_daemons_are_told_with_all_that_their_number_changes():
    asked, shape = load("digits"), Shape(devices=6, edges=2)
    assert fitting(asked, shape) == {
        "fleet.devices": (60, 6),
        "fleet.edges": (3, 2),
        "fleet.dropout": (asked.fleet.dropout, 0.0),
        "round.cohort": (asked.round.cohort, 6),
        "round.over_selection": (asked.round.over_selection, 1.0),
        "privacy.cohort_min": (None, 3),
        "data.held_out_devices": (12, 0),
    }
    assert asked.fleet.dropout > 0 and asked.round.cohort > 6 and asked.round.over_selection > 1
    assert fitting(fitted(asked, shape), shape) == {}


def test_devices_of_a_round_that_followed_a_small_fleet_follow_the_daemons_again(tmp_path):
    whole = bundled()["synthetic-mlp"].read_text()
    own = tmp_path / "own.toml"
    own.write_text(re.sub(r"\[round\]\n(?:.+\n)*", "", whole))
    small = override(load(own), ["fleet.devices=3", "fleet.edges=1"])
    assert small.round.cohort == 3
    assert fitted(small, Shape(devices=5, edges=1)).round.cohort == 5
    said = override(small, ["round.cohort=2"])
    assert fitted(said, Shape(devices=5, edges=1)).round.cohort == 2


OLD = """

[round]
devices = 5
min_reports = 2
deadline_s = 12.5

[privacy]
rotation = true
"""


def test_older_names_of_keys_go_on_with_a_warning_each(tmp_path):
    with pytest.warns(RenamedWarning) as caught:
        scenario = write(tmp_path, GOOD + OLD)
    names = [str(warning.message).partition(": ")[2] for warning in caught]
    assert names == [
        "`round.devices` is now `round.cohort`",
        "`round.min_reports` is now `round.reports_min`",
        "`round.deadline_s` is now `round.timeout_ms`",
        "`privacy.rotation` is now `privacy.rotated`",
    ]
    round = scenario.round
    assert (round.cohort, round.reports_min, round.timeout_ms) == (5, 2, 12_500)
    assert scenario.privacy.rotated
    with pytest.warns(RenamedWarning, match="`round.deadline_s` is now"):
        assert override(scenario, ["round.deadline_s=3"]).round.timeout_ms == 3_000


@pytest.mark.filterwarnings("ignore::delian.core.learning.plan_settings.RenamedWarning")
def test_a_key_under_both_of_its_names_is_refused(mistake):
    message = mistake("[fleet]", "[round]\ndevices = 5\ncohort = 5\n\n[fleet]")
    assert message.startswith("FILE:17:1: `round.devices` and `round.cohort` are one key")
