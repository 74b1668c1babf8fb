"""The pairs that share masks: a Harary graph over the cohort in a random order.

The members stand on a ring in an order drawn from a seed that hashes all their keys; each is a
neighbour of those at distance 1 to k/2 on either side (Bell et al. 2020, section 3.3: for a random
order, such a graph does as well as a random regular one). Each member computes it from what all
have, so no member can be given other neighbours than the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from .kdf import keystream
from .params import Graph
from .secure_errors import SecureError

SEED_BYTES = 32
_WORD = 2**32


def permutation(members: int, seed: bytes) -> list[int]:
    """An order of 0 to members - 1, each as likely as any other when the seed is random.

    Fisher and Yates' shuffle from the last place down, with words of the AES-256-CTR key stream of
    the 32-byte seed; a word that would favour small numbers is passed over.
    """
    if len(seed) != SEED_BYTES:
        raise SecureError("graph", f"a graph seed of {len(seed)} bytes, not {SEED_BYTES}")
    order = list(range(members))
    stream = b""
    at = 0
    for last in range(members - 1, 0, -1):
        choices = last + 1
        fair = _WORD - _WORD % choices
        while True:
            if at == len(stream):
                stream = keystream(seed, 2 * len(stream) or 8 * members)
            word = int.from_bytes(stream[at : at + 4], "little")
            at += 4
            if word < fair:
                break
        place = word % choices
        order[last], order[place] = order[place], order[last]
    return order


def neighbours(graph: Graph, order: Sequence[int], index: int) -> list[int]:
    """The neighbours of a member, in increasing order. `order` is of `permutation`."""
    members = len(order)
    if graph.complete:
        return [other for other in range(members) if other != index]
    place = order.index(index)
    half = graph.degree // 2
    near = [order[(place + step) % members] for step in range(-half, half + 1) if step]
    return sorted(near)
