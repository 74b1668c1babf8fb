"""The Merkle tree of the log: roots and proofs of the published reference tree, and of random trees
against the definition of RFC 9162, section 2.1, written as it stands there.
"""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from delian.core.common import merkle_tree as lt
from delian.core.common.merkle_tree import (
    EMPTY_ROOT,
    Paths,
    ProofError,
    Tree,
    check_consistency,
    leaf_hash,
    root_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# The eight entries of the reference tree of Certificate Transparency (RFC 6962), with the roots and
# proofs that its implementations are tested with.
ENTRIES = [
    bytes.fromhex(entry)
    for entry in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
A = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
B = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
C = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
D = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
E = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
F = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
INCLUSION = {  # (leaf from 0, size): the audit path, from the bottom up
    (0, 1): [],
    (0, 8): [A, B, C],
    (5, 8): [D, E, ROOTS[4]],
    (2, 3): [ROOTS[2]],
    (1, 5): [ROOTS[1], B, D],
}
CONSISTENCY = {(1, 1): [], (1, 8): [A, B, C], (6, 8): [F, E, ROOTS[4]], (2, 5): [B, D]}


def tree_of(entries):
    tree = Tree()
    for entry in entries:
        tree.append(leaf_hash(entry))
    return tree


def split(proof):
    return [proof[at : at + 32] for at in range(0, len(proof), 32)]


def test_the_roots_are_those_of_the_reference_tree():
    tree = tree_of(ENTRIES)
    assert [tree.root(size).hex() for size in range(9)] == ROOTS
    assert [tree_of(ENTRIES[:n]).root().hex() for n in range(9)] == ROOTS
    assert EMPTY_ROOT.hex() == ROOTS[0]


@pytest.mark.parametrize(("leaf", "size"), INCLUSION)
def test_the_inclusion_proofs_are_those_of_the_reference_tree(leaf, size):
    """The same hashes; the batch proof has them in the order of the leaves."""
    proof = tree_of(ENTRIES).inclusion([leaf], size)
    assert {h.hex() for h in split(proof)} == set(INCLUSION[leaf, size])
    assert len(split(proof)) == len(INCLUSION[leaf, size])
    assert root_of({leaf: leaf_hash(ENTRIES[leaf])}, size, proof).hex() == ROOTS[size]


@pytest.mark.parametrize(("old", "size"), CONSISTENCY)
def test_the_consistency_proofs_are_those_of_the_reference_tree(old, size):
    proof = tree_of(ENTRIES).consistency(old, size)
    assert [h.hex() for h in split(proof)] == CONSISTENCY[old, size]
    check_consistency(old, bytes.fromhex(ROOTS[old]), size, bytes.fromhex(ROOTS[size]), proof)


# ---------------------------------------------------------------- against the definition


def mth(leaves):
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    k = half_of(len(leaves))
    return hashlib.sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def half_of(n):
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def batch(leaves, first, proven):
    """The batch proof by its definition."""
    if not any(first <= index < first + len(leaves) for index in proven):
        return [mth(leaves)]
    if len(leaves) == 1:
        return []
    k = half_of(len(leaves))
    return batch(leaves[:k], first, proven) + batch(leaves[k:], first + k, proven)


def subproof(m, leaves, whole):
    """SUBPROOF of RFC 9162, section 2.1.4.1."""
    if m == len(leaves):
        return [] if whole else [mth(leaves)]
    k = half_of(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole), mth(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), mth(leaves[:k])]


LEAVES = [leaf_hash(bytes([n])) for n in range(70)]
TREE = Tree()
for _leaf in LEAVES:
    TREE.append(_leaf)


@st.composite
def proven(draw):
    size = draw(st.integers(1, len(LEAVES)))
    indices = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=12))
    return size, sorted(indices)


@settings(deadline=None)
@given(proven())
def test_a_batch_proof_is_the_one_of_the_definition_and_gives_the_root(case):
    size, indices = case
    proof = TREE.inclusion(indices, size)
    assert split(proof) == batch(LEAVES[:size], 0, indices)
    assert root_of({i: LEAVES[i] for i in indices}, size, proof) == mth(LEAVES[:size])
    assert TREE.root(size) == mth(LEAVES[:size])


@settings(deadline=None)
@given(proven(), st.data())
def test_prepared_paths_prove_every_choice_of_their_leaves(case, data):
    size, indices = case
    chosen = sorted(data.draw(st.sets(st.sampled_from(indices), min_size=1)))
    assert Paths(TREE, indices, size).proof(chosen) == TREE.inclusion(chosen, size)


def test_every_pair_of_sizes_is_consistent_by_the_definition():
    for size in range(len(LEAVES) + 1):
        for old in range(size + 1):
            proof = TREE.consistency(old, size)
            if old:
                assert split(proof) == subproof(old, LEAVES[:size], True)
            check_consistency(old, TREE.root(old), size, TREE.root(size), proof)


# ---------------------------------------------------------------- what does not hold


@settings(deadline=None)
@given(proven(), st.data())
def test_another_leaf_size_index_or_proof_does_not_give_the_root(case, data):
    size, indices = case
    proof, root = TREE.inclusion(indices, size), TREE.root(size)
    leaves = {i: LEAVES[i] for i in indices}
    one = data.draw(st.sampled_from(indices))
    forged = [
        ({**leaves, one: leaf_hash(b"never logged")}, size, proof),
        (leaves, size, proof + bytes(32)),
        (leaves, size, proof[:-32] if proof else bytes(32)),
    ]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        forged.append((leaves, size, proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]))
    if others := [i for i in range(size) if i not in indices]:
        moved = data.draw(st.sampled_from(others))
        forged.append(
            ({**{i: h for i, h in leaves.items() if i != one}, moved: leaves[one]}, size, proof)
        )
    for case in forged:
        with contextlib.suppress(ProofError):
            assert root_of(*case) != root


@pytest.mark.parametrize(
    ("leaves", "size", "proof"),
    [
        ({}, 4, b""),
        ({0: LEAVES[0]}, 0, b""),
        ({4: LEAVES[0]}, 4, bytes(64)),
        ({-1: LEAVES[0]}, 4, bytes(64)),
        ({0: b"short"}, 1, b""),
        ({0: LEAVES[0]}, 4, bytes(63)),
        ({0: LEAVES[0]}, 4, bytes(32)),
        ({0: LEAVES[0]}, 4, bytes(96)),
        ({0: LEAVES[0]}, lt.SIZE_MAX + 1, bytes(64)),
    ],
)
def test_a_malformed_inclusion_proof_is_refused(leaves, size, proof):
    with pytest.raises(ProofError):
        root_of(leaves, size, proof)


def test_a_log_that_was_rewritten_is_not_consistent_with_any_head_of_before():
    for rewritten in (0, 5, 30):
        other = Tree()
        for index, leaf in enumerate(LEAVES):
            other.append(leaf_hash(b"other") if index == rewritten else leaf)
        for old in range(rewritten + 1, len(LEAVES) + 1):
            for size in range(old, len(LEAVES) + 1):
                for proof in (TREE.consistency(old, size), other.consistency(old, size)):
                    with pytest.raises(ProofError):
                        check_consistency(old, TREE.root(old), size, other.root(size), proof)


@pytest.mark.parametrize("old", [1, 4, 6, 7])
def test_a_consistency_proof_of_another_length_or_order_is_refused(old):
    good = TREE.consistency(old, 11)
    roots = TREE.root(old), TREE.root(11)
    check_consistency(old, roots[0], 11, roots[1], good)
    bad = [good[:-32], good + bytes(32), good[:-1], bytes(lt.CONSISTENCY_BYTES_MAX + 32)]
    for proof in [*bad, b"".join(reversed(split(good)))]:
        with pytest.raises(ProofError):
            check_consistency(old, roots[0], 11, roots[1], proof)
    for sizes in [(11, old), (old, lt.SIZE_MAX + 1), (-1, 11)]:
        with pytest.raises(ProofError):
            check_consistency(sizes[0], roots[0], sizes[1], roots[1], good)


def test_two_heads_of_one_size_must_have_one_root():
    check_consistency(3, TREE.root(3), 3, TREE.root(3), b"")
    check_consistency(0, EMPTY_ROOT, 3, TREE.root(3), b"")
    for old, old_root in [(3, TREE.root(2)), (0, TREE.root(3))]:
        with pytest.raises(ProofError):
            check_consistency(old, old_root, 3, TREE.root(3), b"")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: TREE.root(71),
        lambda: TREE.root(-1),
        lambda: TREE.inclusion([70], 70),
        lambda: TREE.inclusion([3, 3], 70),
        lambda: TREE.inclusion([4, 3], 70),
        lambda: TREE.inclusion([], 70),
        lambda: TREE.inclusion([1], 71),
        lambda: TREE.consistency(4, 3),
        lambda: TREE.consistency(4, 71),
        lambda: TREE.leaf(70),
        lambda: Tree().append(b"short"),
        lambda: Paths(TREE, [1, 2], 70).proof([3]),
    ],
)
def test_a_tree_refuses_what_it_cannot_prove(ask):
    with pytest.raises(ProofError):
        ask()
