"""How many neighbours a member has, and how many of them give its secrets back.

For n members of which at most floor(g n) collude with the coordinator and at most floor(d n) drop
out, the smallest even degree k is taken for which (Bell et al. 2020, ePrint 2020/704, section 3:
graphs that are "good" with high probability; the conditions of `graph_parameter_finder.cc` in
Google's federated-compute for its semi-malicious server):

    connected     the graph of honest members that stay is connected, but for 2^-81. A Harary graph
                  falls apart only where two gaps of k/2 places in a row are bad, so
                  P <= n (n-k-1)/2 * prod_{i<k} (b-i)/(n-i),  b = floor(g n) + floor(d n)
    corrupt       t1: a member has more than t1 corrupt neighbours with probability <= 2^-81 / n
    staying       t2: a member has fewer than t2 neighbours that stay with probability < 2^-20 / n
    threshold     t = floor((t1 + k) / 2) + 1, accepted when t <= t2

Both neighbour counts are hypergeometric. Where c <= t1 neighbours of a member are corrupt, a
coordinator that sends devices different survivors gets at most (k - c) + 2c = k + c shares of its
two secrets, and 2t > k + c: never t of both (Bonawitz et al. 2017, section 6.2, for the complete
graph). That is our reading of the papers; it was not reviewed by a cryptographer.

Cohorts of fewer than 32 members are complete, k = n - 1, with floor(g n) in place of t1: so is any
for which no such graph is found. Nothing there is left to chance, more members may fall silent than
the plan says, and so few masks cost little. (The search alone would give a cohort of nine two
neighbours each, and no sum when one of the nine leaves.)

Each party of a session computes this, and has to find the same: probabilities are compared as exact
fractions of integers, so no library's logarithm has a say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, comb, floor

from .secure_errors import SecureError

MEMBERS_MIN = 3
#: Smaller cohorts are complete.
SPARSE_MIN = 32
#: Bits of the chance that the graph gives an update away, and of the chance that a sum is lost. A
#: coordinator can try graphs, by choosing when keys close: 80 leaves 40 bits for 2^40 tries.
SECURITY_BITS = 80
CORRECTNESS_BITS = 20
#: g + 2d above.
BURDEN_MAX = 0.9
#: Shares are bytes, and no member's own place is one: the largest degree.
DEGREE_MAX = 255
#: Added to shares before they are multiplied and floored, so that 0.29 * 100 is 29.
_SMALL = 1e-14


@dataclass(frozen=True, slots=True)
class Graph:
    """The neighbours of each member and the threshold of its secret sharing."""

    degree: int
    """Neighbours of each member, k above."""
    threshold: int
    """Shares that give a secret back, t."""
    complete: bool
    """Whether each member is a neighbour of every other one."""


@cache
def parameters(
    members: int, corrupt: float, dropout: float, security: int = SECURITY_BITS
) -> Graph:
    """The graph for `members`, a share `corrupt` of them dishonest; a share `dropout` leaves.

    security: bits; all members of a session have the default.

    Raises SecureError when no graph fits: shares outside [0, 1), g + 2d above 0.9, fewer than three
    members, or so small a cohort that the promised dropouts would leave too few shares.
    """
    if members < MEMBERS_MIN:
        raise SecureError("members", f"a cohort of {members}, at least {MEMBERS_MIN} are needed")
    if not (0 <= corrupt < 1 and 0 <= dropout < 1 and corrupt + 2 * dropout <= BURDEN_MAX):
        raise SecureError(
            "parameters",
            f"no graph bears {corrupt:g} corrupt and {dropout:g} that fall silent",
            f"corrupt + 2 * dropout may be {BURDEN_MAX:g} at most",
        )
    bad = floor((corrupt + _SMALL) * members)
    gone = floor((dropout + _SMALL) * members)
    staying = ceil((1 - dropout - _SMALL) * members)
    if members >= SPARSE_MIN:
        for degree in range(2, min(members - 1, DEGREE_MAX + 1), 2):
            sparse = _threshold(members, degree, bad, gone, staying, security)
            if sparse is not None:
                return Graph(degree, sparse, complete=False)
    degree = members - 1
    threshold = (degree + bad) // 2 + 1
    if degree > DEGREE_MAX or threshold > degree - gone:
        raise SecureError(
            "parameters",
            f"{members} members are too few for {corrupt:g} corrupt and {dropout:g} silent",
            "make the cohort larger, or count on fewer dropouts",
        )
    return Graph(degree, threshold, complete=True)


def _threshold(
    members: int, degree: int, bad: int, gone: int, staying: int, security: int
) -> int | None:
    """The threshold for a Harary graph of this degree, or None when it is not good enough."""
    broken = bad + gone
    if degree <= broken:
        # P < 2^-81, where the product of (b-i)/(n-i) is C(b, k) / C(n, k).
        pairs = members * (members - degree - 1)  # twice the number of pairs of gaps
        chance = pairs * comb(broken, degree) << security
        if chance >= comb(members, degree):
            return None
    t1 = _upper(members, bad, degree, security + 1)
    t2 = _lower(members, staying, degree, CORRECTNESS_BITS)
    threshold = (t1 + degree) // 2 + 1
    return threshold if threshold <= t2 else None


def _ways(members: int, marked: int, drawn: int, hits: int) -> int:
    """Of the C(members, drawn) draws, how many have so many of the marked."""
    return comb(marked, hits) * comb(members - marked, drawn - hits)


def _upper(members: int, marked: int, drawn: int, bits: int) -> int:
    """The smallest x with P[hits > x] <= 2^-bits / members."""
    total = comb(members, drawn)
    above = 0
    for x in range(min(marked, drawn), 0, -1):
        above += _ways(members, marked, drawn, x)
        if above * members << bits > total:
            return x
    return 0


def _lower(members: int, marked: int, drawn: int, bits: int) -> int:
    """The smallest x with P[hits <= x] >= 2^-bits / members."""
    total = comb(members, drawn)
    below = 0
    for x in range(drawn + 1):
        below += _ways(members, marked, drawn, x)
        if below * members << bits >= total:
            return x
    return drawn
