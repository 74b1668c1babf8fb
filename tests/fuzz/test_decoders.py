"""No decoder does anything with bad input but refuse it."""

import random
from pathlib import Path

import decoders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MUTATIONS = 150


def feed(decoder, data):
    try:
        decoder.read(data)
    except decoder.refusals:
        return False
    return True


@pytest.mark.parametrize("name", decoders.DECODERS)
def test_good_input_is_read(name):
    decoder = decoders.DECODERS[name]
    for seed in decoder.seeds():
        assert feed(decoder, seed), name


@pytest.mark.parametrize("name", decoders.DECODERS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=600))
def test_noise_is_refused_by_name(name, data):
    feed(decoders.DECODERS[name], data)


@pytest.mark.parametrize("name", decoders.DECODERS)
def test_damaged_input_is_read_or_refused_by_name(name):
    decoder = decoders.DECODERS[name]
    draw = random.Random(name)
    for seed in decoder.seeds():
        for _ in range(MUTATIONS):
            feed(decoder, mutated(seed, draw))


def mutated(seed: bytes, draw: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        kind, at = draw.randrange(4), draw.randrange(len(data) + 1)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at : at + draw.randint(1, 8)]
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randint(1, 8))
        else:
            data[at:at] = data[at // 2 : at]
        if not data:
            break
    return bytes(data)


CORPUS = Path(__file__).with_name("corpus")


@pytest.mark.parametrize("name", sorted(p.name for p in CORPUS.iterdir()))
def test_inputs_that_a_fuzzer_kept_are_read_or_refused_by_name(name):
    """Each goes a way through the decoder that the ones before it did not."""
    kept = sorted((CORPUS / name).iterdir())
    assert kept
    outcomes = {feed(decoders.DECODERS[name], path.read_bytes()) for path in kept}
    assert outcomes == {True, False}
