"""Losses of tokens: those of PyTorch and transformers on the same batch; masks by a key."""

from __future__ import annotations

import math

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.runtime import Runtime
from delian.core.learning.sampling import Batch
from delian.core.learning.token_tasks import BITS, IGNORED

VOCABULARY, PAD, MASK, END = 50, 0, 1, 2
ROWS, STEPS = 6, 12


def small(key, **kind):
    return dl.nn.TokenTransformer.init(key, VOCABULARY, VOCABULARY, 16, 1, 2, **kind)


def rows(seed=3, count=ROWS):
    """x i32, y i32: rows with padding at their ends, labels that do not count, and weights."""
    rng = np.random.default_rng(seed)
    x = rng.integers(3, VOCABULARY, (count, STEPS)).astype(np.int32)
    lengths = rng.integers(4, STEPS + 1, count)
    x[np.arange(STEPS) >= lengths[:, None]] = PAD
    y = np.concatenate([x[:, 1:], np.full((count, 1), PAD, np.int32)], axis=1)
    y[(y == PAD) | (rng.random(y.shape) < 0.1)] = IGNORED
    return x, y.astype(np.int32)


def next_token(**more):
    source = dl.learn.Samples(ROWS, 1.0, query_size=4)
    return dl.learn.NextToken("next", small, source, padding=PAD, **more)


def masked_token(**more):
    source = dl.learn.Samples(ROWS, 1.0, query_size=4, keyed=True)

    def init(key):
        return small(key, causal=False)

    given = {"special": (PAD, END), "padding": PAD, **more}
    return dl.learn.MaskedToken("masked", init, source, VOCABULARY, MASK, **given)


def judge(logits, labels):
    """PyTorch's loss."""
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(np.array(logits)).reshape(-1, VOCABULARY)
    wanted = torch.from_numpy(np.array(labels, np.int64)).reshape(-1)
    return float(torch.nn.functional.cross_entropy(given, wanted, ignore_index=-100))


def test_the_loss_of_next_tokens_is_pytorch_s_on_the_same_batch():
    x, y = rows()
    task, model = next_token(), small(dl.random.key(1))
    weight = np.array([1, 1, 0, 1, 1, 0], np.float32)
    logits = model(x, x != PAD)
    known = weight > 0
    loss = dl.compile(task.loss)(model, Batch(x, y, weight))
    assert float(loss) == pytest.approx(judge(logits[known], y[known]), rel=1e-5)
    # A mean of rows' means would be another number.
    means = [judge(logits[i : i + 1], y[i : i + 1]) for i in np.flatnonzero(known)]
    assert abs(np.mean(means) - float(loss)) > 1e-4


def test_a_batch_without_labels_has_no_loss_and_no_slope():
    x, _ = rows()
    batch = Batch(x, np.full_like(x, IGNORED), np.ones(ROWS, np.float32))
    loss, slope = dl.compile(dl.value_and_grad(next_token().loss))(small(dl.random.key(1)), batch)
    assert float(loss) == 0.0
    assert all(not np.any(leaf) for leaf in dl.tree.leaves(slope))


def test_slopes_are_pytorch_s():
    torch = pytest.importorskip("torch")
    x, y = rows()

    class Table:
        def __call__(self, table, x):
            return table[x]

    table = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    own = torch.nn.Parameter(torch.from_numpy(table))
    loss = torch.nn.functional.cross_entropy(
        own[torch.from_numpy(x).long()].transpose(1, 2),
        torch.from_numpy(y).long(),
        ignore_index=-100,
    )
    loss.backward()
    task = next_token()
    head = np.zeros(VOCABULARY, np.float32)
    slope = dl.compile(dl.grad(lambda m, b: task.loss(m, b)))(
        dl.nn.Sequential((dl.nn.Embedding(table),)), Batch(x, y, np.ones(ROWS, np.float32))
    )
    assert head.size == VOCABULARY
    np.testing.assert_allclose(dl.tree.leaves(slope)[0], own.grad.numpy(), atol=1e-6)


def test_perplexity_and_bits_are_of_all_tokens_of_all_batches():
    x, y = rows(5, 9)
    sizes = tuple(float(1 + k % 4) for k in range(VOCABULARY))
    task = next_token(characters=sizes)
    data = dl.learn.SampleSet(x, y, np.array(2), np.array(7))
    made = build(
        task,
        dl.learn.FedAvg(),
        data,
        example=TensorType(DType.I32, (4, STEPS)),
        clip=1.0,
        clients_max=4,
        weight_max=9.0,
        seed=1,
    )
    runtime = Runtime(made, "reference")
    score = runtime.evaluate(made.weights, data, dl.random.key(1))
    logits = np.concatenate([runtime.infer(made.weights, x[k : k + 4])[:4] for k in (2, 5)])
    logits, wanted = np.concatenate([logits[:3], logits[4:]]), np.concatenate([y[2:5], y[6:9]])
    counted = y[2:9] != IGNORED
    assert made.manifest.metrics == (BITS, "perplexity") and score.count == counted.sum()
    (bits, characters), (losses, tokens) = score.more
    assert (losses, tokens) == (score.loss, score.count)
    assert characters == sum(sizes[k] for k in y[2:9][counted])
    assert bits == pytest.approx(losses / math.log(2), rel=1e-6)
    whole = np.concatenate([runtime.infer(made.weights, x[k : k + 4]) for k in (1, 5)])[1:]
    assert losses / tokens == pytest.approx(judge(whole, y[2:9]), rel=1e-5)
    right = (np.argmax(whole, axis=-1) == y[2:9])[counted].mean()
    assert score.accuracy == pytest.approx(right)
    assert wanted.shape[1:] == logits.shape[1:2]


def drawn(task, seed, x, y):
    batch = Batch(x, y, np.ones(len(x), np.float32), dl.random.key(seed))
    seen, labels = dl.compile(lambda b: task.masked(b))(batch)
    return np.array(seen.x), np.array(labels)


def test_masks_are_drawn_as_bert_s_and_by_the_key_alone():
    rng = np.random.default_rng(1)
    x = rng.integers(0, VOCABULARY, (400, 128)).astype(np.int32)
    y = np.where(rng.random(x.shape) < 0.1, IGNORED, x).astype(np.int32)
    task = masked_token()
    seen, labels = drawn(task, 7, x, y)
    free = (y != IGNORED) & (x != PAD) & (x != END)
    chosen = labels != IGNORED
    assert not chosen[~free].any() and (seen[~chosen] == x[~chosen]).all()
    assert (labels[chosen] == x[chosen]).all()
    count = chosen.sum()
    assert count / free.sum() == pytest.approx(0.15, abs=0.006)
    others = chosen & (x != MASK)
    masked, kept = seen[others] == MASK, seen[others] == x[others]
    # One of V draws of another token is the mask, or the token itself.
    assert masked.mean() == pytest.approx(0.8 + 0.1 / VOCABULARY, abs=0.02)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.015)
    replaced = seen[others][~masked & ~kept]
    assert replaced.min() == 0 and replaced.max() == VOCABULARY - 1
    again = drawn(task, 7, x, y)
    assert (again[0] == seen).all() and (again[1] == labels).all()
    assert (drawn(task, 8, x, y)[1] != labels).any()
    plain = task.masked(Batch(x, y, np.ones(400, np.float32), dl.random.key(7)))
    assert (plain[0].x == seen).all() and (plain[1] == labels).all()


def test_the_loss_of_masked_tokens_is_bert_s_on_the_same_batch():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=STEPS,
        pad_token_id=PAD,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    bert = transformers.BertForMaskedLM(config).eval()
    x, _ = rows()
    labels = np.where(x == PAD, IGNORED, x).astype(np.int32)
    ids = torch.from_numpy(x).long()
    model = dl.from_torch(bert, (ids, (ids != PAD).long()), output="logits", padding=PAD)
    task = masked_token(share=0.5)
    batch = Batch(x, labels, np.ones(ROWS, np.float32), dl.random.key(4))
    loss = dl.compile(task.loss)(model, batch)
    seen, wanted = task.masked(batch)
    with torch.no_grad():
        right = bert(
            torch.from_numpy(np.array(seen.x)).long(),
            attention_mask=torch.from_numpy(seen.x != PAD).long(),
            labels=torch.from_numpy(np.array(wanted)).long(),
        ).loss
    assert 0 < (wanted != IGNORED).sum() < (labels != IGNORED).sum()
    assert float(loss) == pytest.approx(float(right), rel=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_documents_apart_do_not_see_one_another(causal):
    apart = small(dl.random.key(1), causal=causal, end=END)
    x = np.array([[5, 6, END, 7, 8, END], [9, 4, END, 7, 8, END]], np.int32)
    run = dl.compile(lambda m, x: m(x, x != PAD))
    for found in (run(apart, x), apart(x)):
        np.testing.assert_allclose(found[0, 3:], found[1, 3:], atol=1e-6)
        assert np.abs(found[0, 1] - found[1, 1]).max() > 1e-3
    joined = small(dl.random.key(1), causal=causal)(x)
    assert np.abs(joined[0, 3:] - joined[1, 3:]).max() > 1e-3
    own = small(dl.random.key(1), causal=causal)(x[:, :3])
    np.testing.assert_allclose(run(apart, x)[:, :3], own, atol=1e-5)


def test_masks_need_a_key():
    x, y = rows()
    with pytest.raises(ValueError, match="keyed=True"):
        masked_token().masked(Batch(x, y, np.ones(ROWS, np.float32)))


def test_a_model_of_rows_is_no_model_of_tokens():
    x, y = rows()

    def pooled(key):
        return dl.nn.TokenTransformer.init(key, VOCABULARY, 5, 16, 1, 2, pooled=True)

    task = dl.learn.NextToken("wrong", pooled, dl.learn.Samples(4, 1.0))
    with pytest.raises(ValueError, match="gives logits"):
        task.loss(pooled(dl.random.key(0)), Batch(x, y, np.ones(ROWS, np.float32)))


def test_what_padding_holds_changes_no_label_of_a_row():
    """Sequence classification: the mask is made of the padding."""
    x, _ = rows()
    labels = np.arange(ROWS, dtype=np.int32) % 3

    def init(key):
        return dl.nn.TokenTransformer.init(key, VOCABULARY, 3, 16, 1, 2, causal=False, pooled=True)

    task = dl.learn.Classification("label", init, dl.learn.Samples(4, 1.0), padding=PAD)
    model = init(dl.random.key(2))
    one = np.concatenate([x, np.full((ROWS, 4), PAD, np.int32)], axis=1)
    short = dl.compile(lambda m, x: task.infer(m, x))(model, x)
    np.testing.assert_allclose(task.infer(model, one), short, atol=1e-5)
    without = dl.learn.Classification("label", init, dl.learn.Samples(4, 1.0))
    assert np.abs(without.infer(model, one) - short).max() > 1e-3
    loss = task.loss(model, Batch(x, labels, np.ones(ROWS, np.float32)))
    assert float(loss) > 0
