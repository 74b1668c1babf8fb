"""The Merkle tree of a log that only grows: RFC 9162, section 2.1, with SHA-256.

    MTH({})         = SHA-256()
    leaf(entry)     = SHA-256(0x00 || entry)
    MTH({e})        = leaf(e)
    MTH(D[n])       = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n])),  k the largest power of 2 below n

A *batch inclusion proof* proves many leaves at once. The tree is walked depth first, from left to
right: a subtree without a proven leaf is one hash of the proof, every other subtree is computed.
For one leaf this is the audit path of section 2.1.3, in the order of the leaves instead of from the
bottom up. A *consistency proof* is the one of section 2.1.4.

Proofs are hashes of 32 bytes, one after another without a separator. The verifier knows the
size of the tree from a signed head, so the size decides how many hashes there are; a proof with one
hash more or less is refused. This module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

from .errors import DelianError

HASH_BYTES: Final = 32
#: Leaves of a tree. A tree in memory has 64 bytes for each.
SIZE_MAX: Final = 1 << 32
#: Leaves that one batch proof proves: the members of the largest cohort are fewer.
PROVEN_MAX: Final = 1 << 16
#: Hashes of a consistency proof: at most one for each level and one more.
CONSISTENCY_BYTES_MAX: Final = (SIZE_MAX.bit_length() + 1) * HASH_BYTES
EMPTY_ROOT: Final = sha256().digest()


class ProofError(DelianError):
    """A proof that does not hold, or a question that a tree of this size cannot answer."""


def leaf_hash(entry: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\0" + entry).digest()


def _join(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _height(size: int) -> int:
    """Levels above the leaves of a tree of `size` leaves."""
    return (size - 1).bit_length()


class Tree:
    """A tree that grows. It also proves what its earlier sizes contained.

    Level k has the hashes of the complete subtrees of 2^k leaves, from left to right. The hash of
    the one incomplete subtree of a level is computed when it is needed.
    """

    def __init__(self) -> None:
        self._levels: list[bytearray] = [bytearray()]
        self._edges: tuple[int, list[bytes]] = (0, [])  # of the last size that was asked for

    @property
    def size(self) -> int:
        """Leaves."""
        return len(self._levels[0]) // HASH_BYTES

    def append(self, leaf: bytes) -> int:
        """Adds a leaf by its hash and gives its index. Raises ProofError when the tree is full."""
        index = self.size
        if len(leaf) != HASH_BYTES or index >= SIZE_MAX:
            raise ProofError(f"a tree of {index} leaves takes no leaf of {len(leaf)} bytes")
        node, above = leaf, index
        for level in range(SIZE_MAX.bit_length()):
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += node
            if not above & 1:
                break
            node = sha256(b"\1" + self._levels[level][-2 * HASH_BYTES :]).digest()
            above >>= 1
        return index

    def leaf(self, index: int) -> bytes:
        """The hash of a leaf. Raises ProofError."""
        if not 0 <= index < self.size:
            raise ProofError(f"a tree of {self.size} leaves has no leaf {index}")
        return self._complete(0, index)

    def root(self, size: int | None = None) -> bytes:
        """The root when the tree had `size` leaves; None: now. Raises ProofError."""
        at = self._checked(self.size if size is None else size)
        return self._edges_at(at)[-1] if at else EMPTY_ROOT

    def inclusion(self, indices: Sequence[int], size: int) -> bytes:
        """The batch proof of leaves; indices: ascending, at most PROVEN_MAX. Raises ProofError."""
        return Paths(self, indices, size).proof(indices)

    def consistency(self, old: int, size: int) -> bytes:
        """The proof that the tree of `size` leaves begins with that of `old`. Raises ProofError."""
        if not 0 <= old <= self._checked(size):
            raise ProofError(f"a tree of {size} leaves cannot begin with {old}")
        if old in (0, size):
            return b""
        parts: list[bytes] = []  # from the top down; the proof begins at the bottom
        start, count, left, is_old_root = 0, size, old, True
        while left != count:
            half = 1 << (_height(count) - 1)
            level = _height(half)
            if left <= half:
                parts.append(self.node(_height(count - half), start + half, size))
                count = half
            else:
                parts.append(self.node(level, start, size))
                start, count, left, is_old_root = start + half, count - half, left - half, False
        if not is_old_root:
            parts.append(self.node(_height(count), start, size))
        return b"".join(reversed(parts))

    def _checked(self, size: int) -> int:
        if not 0 <= size <= self.size:
            raise ProofError(f"a tree of {self.size} leaves has no root of {size} leaves")
        return size

    def _complete(self, level: int, index: int) -> bytes:
        at = index * HASH_BYTES
        return bytes(self._levels[level][at : at + HASH_BYTES])

    def node(self, level: int, start: int, size: int) -> bytes:
        """The hash of the subtree of 2^level leaves that begins at leaf `start`, cut at `size`."""
        if start + (1 << level) <= size:
            return self._complete(level, start >> level)
        return self._edges_at(size)[level]

    def _edges_at(self, size: int) -> list[bytes]:
        """The hash of the last subtree of each level in the tree of `size` leaves, size > 0."""
        known = self._edges  # another thread may ask for another size meanwhile
        if known[0] != size:
            edges = [self._complete(0, size - 1)]
            for level in range(1, _height(size) + 1):
                last = (size - 1) >> level
                if (last + 1) << level <= size:
                    edges.append(self._complete(level, last))
                elif (size - 1) >> (level - 1) & 1:
                    edges.append(_join(self._complete(level - 1, 2 * last), edges[-1]))
                else:
                    edges.append(edges[-1])  # it has no right child
            known = self._edges = size, edges
        return known[1]


class Paths:
    """The paths of some leaves in a tree of one size, from which batch proofs are cut.

    For a coordinator that proves to each device another choice of one cohort's members.
    """

    def __init__(self, tree: Tree, indices: Sequence[int], size: int) -> None:
        """indices: ascending, at most PROVEN_MAX. Raises ProofError."""
        tree.root(size)
        _check_indices(indices, size)
        self.size = size
        self._height = _height(size) if size else 0
        self._of = {index: self._path(tree, index) for index in indices}

    def proof(self, indices: Sequence[int]) -> bytes:
        """The batch proof of some of the leaves, ascending. Raises ProofError."""
        _check_indices(indices, self.size)
        parts: list[bytes] = []
        before = -1
        for index in indices:
            if index not in self._of:
                raise ProofError(f"the path of leaf {index} was not prepared")
            lefts, lefts_above, _, _ = self._of[index]
            if before < 0:
                parts.append(lefts)
            else:
                below = (before ^ index).bit_length() - 1
                _, _, rights, rights_below = self._of[before]
                parts += rights[: rights_below[below]], lefts[lefts_above[below] :]
            before = index
        parts.append(self._of[before][2])
        return b"".join(parts)

    def _path(self, tree: Tree, index: int) -> tuple[bytes, list[int], bytes, list[int]]:
        """Left siblings, bytes of them from level k up.

        Right siblings, bytes of them below level k.
        """
        lefts: list[bytes] = []
        rights = bytearray()
        left_levels, right_ends = [0], [0]
        for level in range(self._height):
            at = index >> level
            sibling = (at ^ 1) << level
            if at & 1:
                lefts.append(tree.node(level, sibling, self.size))
            elif sibling < self.size:
                rights += tree.node(level, sibling, self.size)
            left_levels.append(len(lefts))
            right_ends.append(len(rights))
        above = [(len(lefts) - count) * HASH_BYTES for count in left_levels]
        return b"".join(reversed(lefts)), above, bytes(rights), right_ends


def root_of(leaves: Mapping[int, bytes], size: int, proof: bytes) -> bytes:
    """The root of a tree of `size` leaves that has these leaves, by a batch proof.

    leaves: index -> hash of the leaf. The leaves are in the tree when this is the root of a head
    that counts. Raises ProofError for a proof that cannot be of these leaves and this size.
    """
    indices = sorted(leaves)
    _check_indices(indices, size)
    height = _height(size)
    if len(proof) > len(indices) * height * HASH_BYTES:
        raise ProofError("the inclusion proof is too long")
    hashes = _hashes(proof)
    waiting: list[bytes] = []  # left siblings of what is computed, the lowest last
    before, node = indices[0], b""
    below = height
    for index in indices:
        if index != before:
            below = (before ^ index).bit_length() - 1
            waiting.append(_climb(node, before, below, size, hashes, waiting))
        ones = (index & ((1 << below) - 1)).bit_count()
        waiting += (_next(hashes) for _ in range(ones))
        node, before = leaves[index], index
        if len(node) != HASH_BYTES:
            raise ProofError(f"a leaf's hash has {len(node)} bytes")
    root = _climb(node, before, height, size, hashes, waiting)
    if next(hashes, None) is not None:
        raise ProofError("the inclusion proof is too long")
    return root


def _climb(
    node: bytes, index: int, height: int, size: int, hashes: Iterator[bytes], waiting: list[bytes]
) -> bytes:
    """The hash of the subtree of that height above a leaf, which is the last proven one in it."""
    for level in range(height):
        at = index >> level
        if at & 1:
            node = sha256(b"\1" + waiting.pop() + node).digest()
        elif (at + 1) << level < size:
            node = sha256(b"\1" + node + _next(hashes)).digest()
    return node


def check_consistency(old_size: int, old_root: bytes, size: int, root: bytes, proof: bytes) -> None:
    """Whether the tree of `size` leaves begins with the tree of `old_size` leaves.

    RFC 9162, section 2.1.4.2. Raises ProofError when the proof does not show it.
    """
    if not 0 <= old_size <= size <= SIZE_MAX or len(proof) > CONSISTENCY_BYTES_MAX:
        raise ProofError(f"a log of {size} entries cannot continue one of {old_size}")
    if old_size in (0, size):
        if proof or old_root != (root if old_size else EMPTY_ROOT):
            raise ProofError("the two heads of one size have different roots")
        return
    hashes = _hashes(proof)
    at, last = old_size - 1, size - 1
    while at & 1:  # a complete subtree of the old tree is a node of the new one
        at, last = at >> 1, last >> 1
    old = new = _next(hashes) if at else old_root
    while last:
        if at & 1:
            left = _next(hashes)
            old, new = _join(left, old), _join(left, new)
        elif at < last:
            new = _join(new, _next(hashes))
        at, last = at >> 1, last >> 1
    if old != old_root or new != root or next(hashes, None) is not None:
        raise ProofError("the consistency proof does not hold")


def _check_indices(indices: Sequence[int], size: int) -> None:
    if not 0 < len(indices) <= PROVEN_MAX or not 0 < size <= SIZE_MAX:
        raise ProofError(f"{len(indices)} leaves cannot be proven in a tree of {size}")
    before = -1
    for index in indices:
        if not before < index < size:
            raise ProofError(f"leaf {index} of {size} is out of order, or not in the tree")
        before = index


def _hashes(proof: bytes) -> Iterator[bytes]:
    if len(proof) % HASH_BYTES:
        raise ProofError("a proof is not a number of whole hashes")
    return (proof[at : at + HASH_BYTES] for at in range(0, len(proof), HASH_BYTES))


def _next(hashes: Iterator[bytes]) -> bytes:
    found = next(hashes, None)
    if found is None:
        raise ProofError("a proof is too short")
    return found
