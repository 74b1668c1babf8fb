"""Decoders: equal to Llama's of transformers; blocks that run again; weights in few bits."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn
from delian.core.common.errors import DelianError
from delian.core.compiler import api
from delian.core.learning import adapters

RNG = np.random.default_rng(7)
SYMBOLS, WIDTH, DEPTH, HEADS, KEYS, INNER = 97, 48, 2, 6, 2, 112


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def small(tied: bool = True) -> nn.Decoder:
    model = nn.decoder(dl.random.key(3), SYMBOLS, WIDTH, DEPTH, HEADS, KEYS, INNER, tied=tied)
    # Scales that are not all one, so that none can be left out.
    leaves, structure = dl.tree.flatten(model)
    return dl.tree.unflatten(
        structure, [x * (1 + 0.1 * normal(*x.shape)) if x.ndim == 1 else x for x in leaves]
    )


def batch(n: int = 2, t: int = 11) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, SYMBOLS, (n, t)), RNG.integers(0, SYMBOLS, (n, t))


def mean_loss(model: nn.Decoder, symbols: np.ndarray, labels: np.ndarray) -> Any:
    return np.mean(model.losses(symbols, labels))


def arena_bytes(run: api.Compiled) -> int:
    return next(iter(run._entries.values())).run.report.arena_bytes


# -- transformers as the judge


def llama_names(model: nn.Decoder) -> dict[str, np.ndarray]:
    """The weights as a state dict of LlamaForCausalLM, whose matrices are [outputs, inputs]."""
    found = {
        "model.embed_tokens.weight": model.embedding.table,
        "model.norm.weight": model.norm.scale,
    }
    head = model.embedding.table if model.head is None else model.head.weight.T
    found["lm_head.weight"] = head
    for i, block in enumerate(model.blocks):
        at, attention, gated = f"model.layers.{i}", block.attention, block.feed_forward
        found[f"{at}.input_layernorm.weight"] = block.norm.scale
        found[f"{at}.post_attention_layernorm.weight"] = block.last_norm.scale
        for name, layer in (
            *(("q", attention.query), ("k", attention.key), ("v", attention.value)),
            ("o", attention.output),
        ):
            found[f"{at}.self_attn.{name}_proj.weight"] = layer.weight.T
        for name, layer in (("gate", gated.gate), ("up", gated.up), ("down", gated.down)):
            found[f"{at}.mlp.{name}_proj.weight"] = layer.weight.T
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_is_the_llama_of_transformers(tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, (symbols, labels) = small(tied), batch()
    judge = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=SYMBOLS,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=DEPTH,
            num_attention_heads=HEADS,
            num_key_value_heads=KEYS,
            rms_norm_eps=1e-6,
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    )
    state = {k: torch.tensor(np.ascontiguousarray(v)) for k, v in llama_names(model).items()}
    judge.load_state_dict(state)
    logits = judge(torch.tensor(symbols)).logits
    torch.nn.functional.cross_entropy(
        logits.reshape(-1, SYMBOLS), torch.tensor(labels).reshape(-1)
    ).backward()
    got = api.compile(lambda m, s: m(s))(model, symbols)
    np.testing.assert_allclose(got, logits.detach().numpy(), atol=2e-5)
    gradient = api.compile(api.grad(mean_loss))(model, symbols, labels)
    wanted = {k: p.grad.numpy() for k, p in judge.named_parameters()}
    found = llama_names(gradient)
    for name, want in wanted.items():
        np.testing.assert_allclose(found[name], want, atol=2e-6 + 1e-4 * np.abs(want).max())


def test_rotary_positions_keep_lengths_and_see_distances() -> None:
    x, y = normal(2, 9, 16), normal(2, 9, 16)
    turned = dl.ops.rotary(x)
    np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    later = dl.ops.rotary(x, first=5), dl.ops.rotary(y, first=5)
    near = turned @ np.swapaxes(dl.ops.rotary(y), 1, 2)
    np.testing.assert_allclose(later[0] @ np.swapaxes(later[1], 1, 2), near, atol=1e-4)
    with pytest.raises(ValueError, match="even length, not 5"):
        dl.ops.rotary(normal(3, 5))


def test_heads_that_do_not_divide_are_refused() -> None:
    for width, heads, keys in ((48, 5, 5), (48, 6, 4), (18, 6, 6)):
        with pytest.raises(ValueError, match=f"a width of {width} in {heads} heads"):
            nn.GroupedAttention.init(dl.random.key(0), width, heads, keys)


# -- memory


def test_blocks_that_run_again_give_the_same_gradient_in_less_memory() -> None:
    model = nn.decoder(dl.random.key(1), 64, 32, 5, 4)
    symbols, labels = RNG.integers(0, 64, (2, 4, 64))
    again = api.compile(api.grad(mean_loss))
    kept = api.compile(api.grad(mean_loss))
    got = again(model, symbols, labels)
    want = kept(replace(model, recomputed=False), symbols, labels)
    for a, b in zip(dl.tree.flatten(got)[0], dl.tree.flatten(want)[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 + 1e-5 * np.abs(b).max())
    assert arena_bytes(again) < arena_bytes(kept) / 2


def whole(node: Any) -> Any:
    """A model with the numbers that its weights stand for."""
    if isinstance(node, dl.QuantisedWeight):
        return np.ascontiguousarray(node.expanded())
    if isinstance(node, tuple):
        return tuple(map(whole, node))
    if not dataclasses.is_dataclass(node):
        return node
    return replace(node, **{f.name: whole(getattr(node, f.name)) for f in dataclasses.fields(node)})


@pytest.mark.parametrize("kind", ["i8", "i4"])
def test_adapters_train_on_a_base_in_few_bits(kind: str) -> None:
    """The gradient is that of the numbers of the base, and none of its weights is in the arena."""
    width, symbols = 256, 2000
    frozen = nn.quantised(nn.decoder(dl.random.key(2), symbols, width, 2, 4, 2), kind)
    parts = adapters.split(dl.lora(frozen, 4))
    numbers = adapters.split(dl.lora(whole(frozen), 4))
    assert sum("query.weight.a" in name for name in parts.trained) == 2
    trained = {name: 0.1 * normal(*leaf.shape) for name, leaf in parts.trained.items()}
    tokens, labels = RNG.integers(0, symbols, (2, 4, 32))

    def loss(trained, frozen, tokens, labels):
        return mean_loss(parts.join(trained, frozen), tokens, labels)

    def plain(trained, frozen, tokens, labels):
        return mean_loss(numbers.join(trained, frozen), tokens, labels)

    few, full = (api.compile(api.value_and_grad(f)) for f in (loss, plain))
    value, got = few(trained, parts.frozen, tokens, labels)
    other, want = full(trained, numbers.frozen, tokens, labels)
    assert abs(value - other) < 1e-5 * abs(other)
    for name, slope in want.items():
        np.testing.assert_allclose(got[name], slope, atol=1e-7 + 1e-4 * np.abs(slope).max())
    panels, largest = 4 * 128 * 1024, 4 * width * 4 * width
    assert arena_bytes(few) < arena_bytes(full) + panels < arena_bytes(full) + largest


@pytest.mark.parametrize("recomputed", [True, False])
def test_stacked_blocks_are_the_blocks_one_after_the_other(recomputed: bool) -> None:
    width, symbols, depth = 64, 300, 5
    frozen = nn.quantised(nn.decoder(dl.random.key(2), symbols, width, depth, 4, 2), "i8")
    model = dl.lora(frozen, 4)
    draws = {k: 0.1 * normal(*v.shape) for k, v in adapters.split(model).trained.items()}
    model = adapters.split(model).join(draws, adapters.split(model).frozen)
    blocks = nn.stacked(model.blocks, recomputed)
    looped = adapters.split(replace(model, blocks=blocks))
    tokens, labels = RNG.integers(0, symbols, (2, 2, 16))
    flat = adapters.split(model)

    def loss(trained, frozen, tokens, labels):
        return mean_loss(flat.join(trained, frozen), tokens, labels)

    def in_a_loop(trained, frozen, tokens, labels):
        return mean_loss(looped.join(trained, frozen), tokens, labels)

    want = api.compile(api.value_and_grad(loss))(flat.trained, flat.frozen, tokens, labels)
    run = api.compile(api.value_and_grad(in_a_loop))
    got = run(looped.trained, looped.frozen, tokens, labels)
    assert abs(got[0] - want[0]) < 1e-5 * want[0]
    for name, slopes in got[1].items():
        for k, slope in enumerate(slopes):
            one = want[1][name.replace("blocks.blocks.", f"blocks.{k}.")]
            np.testing.assert_allclose(slope, one, atol=1e-6 + 1e-5 * np.abs(one).max())
    ops = api.compile(in_a_loop).trace(looped.trained, looped.frozen, tokens, labels).function
    assert [op.name for op in ops.body.walk()].count("attention") == 1


def test_blocks_that_differ_are_not_stacked() -> None:
    keys = dl.random.split(dl.random.key(0), 2)
    one, wide = nn.DecoderBlock.init(keys[0], 16, 2), nn.DecoderBlock.init(keys[1], 16, 2, inner=8)
    with pytest.raises(DelianError, match=r"feed_forward\.gate\.weight of block 1 is float32"):
        nn.stacked([one, wide])
    with pytest.raises(DelianError, match="block 1 is not built as block 0"):
        nn.stacked([one, nn.DecoderBlock.init(keys[1], 16, 4)])
    with pytest.raises(DelianError, match="at least one block"):
        nn.stacked([])


def test_only_large_matrices_of_layers_are_quantised() -> None:
    model = {"layer": nn.Dense.init(dl.random.key(0), 80, 80), "head": (small().blocks[0].norm,)}
    few = nn.quantised(model, "i4", 16)
    assert few["layer"].weight.kind == "i4" and few["layer"].weight.scales.shape == (80, 5, 1)
    assert few["layer"].bias is model["layer"].bias
    assert few["head"][0].scale is model["head"][0].scale
    tiny = nn.Dense.init(dl.random.key(0), 8, 8)
    assert nn.quantised(tiny).weight is tiny.weight
