"""Chains in simulations: what the whole protocol gives is what the chain gives in NumPy, and a
scenario's keys and a chain are two ways to write one thing.
"""

from __future__ import annotations

from dataclasses import dataclass

import delian.device.protocol.device_actions as device_actions
import delian.device.protocol.secure_session as device_secure
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import tree
from delian.core.learning import ClientResult, FedAvg
from delian.core.learning.aggregate import chains
from delian.core.learning.aggregate.chains import Round, read
from delian.core.protocol.random_streams import device_key
from delian.simulations.runs.compiled_training import CompiledTraining
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.composition import chain_of
from delian.simulations.scenario.scenario_file import with_chain

DEVICES = 8
STILL = [
    *("rounds=3", "fleet.devices=12", "data.held_out_devices=4", "fleet.dropout=0.0"),
    *("round.cohort=8", "round.over_selection=1.0", "round.reports_min=8"),
    *("evaluation.every=3", "network.device_edge.loss=0.0", "model.hidden=[4]"),
]


def scenario(*settings):
    chosen = scenario_file.with_algorithm(scenario_file.load("digits"), "fedavg")
    return scenario_file.override(chosen, [*STILL, *settings])


@dataclass(frozen=True)
class Told(FedAvg):
    """A device's update is the model times the first grey value of its own that is not zero: one
    exact multiplication, so that the update is known outside to the bit.
    """

    def client_update(self, task, state, data, key, kept=()):
        update = tree.map(lambda leaf: leaf * factor_of(data), state)
        return ClientResult(update, self.weight(data), np.float32(0.0), kept)


def factor_of(data):
    return data.x[0].reshape(-1)[10].astype(np.float32) - np.float32(3.0)


class Listener:
    """Writes down what the tiers were given: rounds' keys, devices' noise, means and models."""

    def __init__(self, monkeypatch):
        self.rounds, self.trained, self.noise, self.device = [], {}, {}, None
        self.keys = {}
        finished, add = device_actions.finished, device_secure.noise_mechanism.add
        submit, update = CompiledTraining.submit, CompiledTraining.server_update

        def hear_finished(vector, plan, round_key, key):
            self.device = next(d for d in range(DEVICES) if device_key(round_key, d) == tuple(key))
            self.keys[self.device] = round_key
            return finished(vector, plan, round_key, key)

        def hear_noise(vector, plan, key):
            self.noise[0 if plan.central else self.device] = key
            add(vector, plan, key)

        def hear_submit(training, device, weights, key):
            self.trained[device] = weights.copy()
            self.training = training
            return submit(training, device, weights, key)

        def hear_update(training, weights, memory, mean, weight):
            made = update(training, weights, memory, mean, weight)
            (key,) = set(self.keys.values())
            assert sorted(self.keys) == list(range(DEVICES))
            self.rounds.append((weights.copy(), key, dict(self.noise), mean.copy(), made[0].copy()))
            self.noise, self.keys = {}, {}
            return made

        monkeypatch.setattr(device_actions, "finished", hear_finished)
        monkeypatch.setattr(device_secure.noise_mechanism, "add", hear_noise)
        monkeypatch.setattr(CompiledTraining, "submit", hear_submit)
        monkeypatch.setattr(CompiledTraining, "server_update", hear_update)


FEDERATED = [
    "top_k(0.1) | clip(1) | quantise(16) | mean",
    "clip(1) | quantise | mean",
    "clip(0.5) | quantise(8) | mean",
    "clip(1) | rotate | quantise(16) | random_k(0.25) | mask | mean",
    "clip(1) | quantise(20) | moving_clip(0.3, 0.5) | random_k(0.5) | mask | mean",
    "clip(1) | quantise | noise(50) | mask(corrupt=0.1) | mean",
    "clip(1) | rotate | quantise | mask | noise(50) | mean",
    "clip(1) | quantise | trimmed_mean(0.25)",
    "clip(1) | quantise | geometric_median(0.25)",
]


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("native", "clip(1) | rotate | quantise(12) | mean"),
        *(("reference", text) for text in FEDERATED),
    ],
)
def test_a_federation_gives_what_its_chain_gives_to_the_bit(text, backend, monkeypatch):
    chain, heard = read(text), Listener(monkeypatch)
    result = simulate(scenario(), algorithm=Told(), chain=chain, threads=1, backend=backend)
    assert [r.applied for r in result.rounds] == [True] * 3 and not result.why
    assert read(result.chain) == chain
    runtime, arrays = heard.training.runtime, heard.training.arrays
    factors = [factor_of(data) for data in arrays]
    assert len(set(map(float, factors))) > 3
    plan = chain.finished(runtime.ring)
    most = runtime.manifest.weight_max
    weights = {d: np.minimum(np.float32(a.support) / most, 1) for d, a in enumerate(arrays)}
    state = chain.init(plan)
    for model, key, noise, mean, _ in heard.rounds:
        updates = {d: model * factor for d, factor in enumerate(factors)}
        made, state = chain.apply(plan, Round(model, key, updates, weights, noise), state)
        np.testing.assert_array_equal(made, mean)
    assert np.any(mean)


@pytest.mark.parametrize("server", ["server(momentum, 0.5)", "server(adam, 0.01)", "server(yogi)"])
def test_a_server_s_optimiser_goes_on_from_round_to_round(server, monkeypatch):
    chain, heard = read(f"clip(1) | quantise | mask | mean | {server}"), Listener(monkeypatch)
    simulate(scenario(), algorithm=Told(), chain=chain, threads=1, backend="reference")
    stage = chain.get("server")
    state = stage.init(heard.training.runtime.ring)
    for model, _, _, mean, after in heard.rounds:
        made, state = stage.apply(mean, state, chains.Turn(None, model=model))
        np.testing.assert_allclose(made, after, rtol=1e-6, atol=1e-7)


TEXTS = [
    "clip(norm=1) | quantise | mean | server(learning_rate=0.5)",
    "clip(norm=2) | rotate | quantise(bits=16) | moving_clip(quantile=0.6) | random_k(share=0.1)"
    " | mask(least=5) | mean | server(optimizer=adam, learning_rate=0.01)",
    "clip(norm=1) | quantise | noise(epsilon=8, delta=1e-05) | mask(corrupt=0.1) | mean | server",
    "clip(norm=1) | quantise | mask | noise(epsilon=8) | mean | server",
    "clip(norm=1) | quantise(bits=24) | trimmed_mean(hostile=0.3) | server",
    "top_k(share=0.05) | clip(norm=1) | quantise | mean | server",
    "clip(norm=1) | quantise | mask | fedbuff(staleness_max=4) | server",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_chain_as_keys_is_that_chain(text):
    kept = scenario("privacy.noise=central", "privacy.epsilon=3", "privacy.random_k=0.5")
    made = with_chain(kept, read(text))
    assert str(chain_of(made)) == text
    assert with_chain(made, chain_of(made)) == made
    assert made.chain is None and "chain" not in made.to_json()


FILE = """
name = "own"
rounds = 2
chain = "{chain}"
[data]
source = "digits"
[model]
name = "mlp"
[algorithm]
name = "fedavg"
[fleet]
devices = 20
"""


def test_a_scenario_s_file_may_say_its_chain_in_one_line(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(FILE.format(chain=TEXTS[1]))
    assert str(chain_of(scenario_file.load(file))) == TEXTS[1]
    file.write_text(FILE.format(chain=TEXTS[1]) + "[privacy]\nclip = 3.0\n")
    with pytest.raises(DelianError, match=r"own.toml:14:1: `privacy.clip`: the chain says it too"):
        scenario_file.load(file)
    file.write_text(FILE.format(chain="clip(1) | mask | mean"))
    with pytest.raises(DelianError, match=r"own.toml:4:1: `chain`: mask without quantise"):
        scenario_file.load(file)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["privacy.random_k=0.5", "round.rule=median"], "`privacy.random_k`: random_k with median"),
        (["privacy.clip_quantile=0.5", "round.mode=buffered"], "`privacy.clip_quantile`"),
        (["chain=clip(1) | quantise | mask | median"], "`chain`: median with mask"),
        (["chain=clip(1) | quantise | mean", "privacy.bits=8"], "the chain says it too"),
    ],
)
def test_keys_that_make_no_chain_are_refused_by_name(settings, says):
    with pytest.raises(DelianError) as caught:
        scenario(*settings)
    assert says in caught.value.message


def test_a_chain_on_the_command_line_takes_the_place_of_the_scenario_s():
    turned = scenario("privacy.rotated=true")
    made = scenario_file.override(turned, [f"chain={TEXTS[4]}", "rounds=5"])
    assert str(chain_of(made)) == TEXTS[4] and made.rounds == 5


def test_top_k_sends_so_much_less_and_learns():
    """A twentieth of the coordinates with their places, of a model of 650 numbers: 10 + 32 bits
    each in the place of 20 times 32.
    """
    settings = ["rounds=8", "evaluation.every=8", "model.hidden=[]"]
    runs = []
    for text in ("clip(4) | quantise | mean", "top_k(0.05) | clip(4) | quantise | mean"):
        made = scenario_file.with_chain(scenario(*settings), read(text))
        runs.append(simulate(made, threads=1))
    whole, sparse = (run.rounds[-1] for run in runs)
    per_device = [run.bytes["device_edge_up"] / 8 for run in (whole, sparse)]
    places, elements = -(-32 * 10 // 8), 4 * 33  # of 650, 32; and the weight
    saved = 4 * 651 - places - elements
    assert per_device[0] - per_device[1] == pytest.approx(saved, abs=8)
    assert sparse.personalised_accuracy > 0.5 and sparse.global_accuracy > 0.25
    assert len(runs[1].bundle.manifest.client_state) == 1
