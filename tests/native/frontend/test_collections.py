"""`collections`, `heapq` and `bisect`: containers whose structure is known while compiling."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from support.frontend_programs import same_as_python as same

VALUES = np.array([1.0, 5.0, 2.0, 7.0])
GRAPH = {0: [(1, 4), (2, 1)], 1: [(3, 1)], 2: [(1, 2), (3, 5)], 3: []}


def a_moving_mean(v, t):
    window, means = deque(maxlen=3), []
    for x in v:
        window.append(x * t)
        means.append(sum(window) / len(window))
    return means


def ends_of_a_deque(v, t):
    q = deque([0.0, t])
    q.append(t)
    q.appendleft(1.0)
    first, last = q.popleft(), q.pop()
    q.extend([3.0, 4.0])
    q.extendleft([5.0, 6.0])
    q.rotate(2)
    q.rotate(-1)
    q.insert(1, v[0])
    return list(q), first, last, len(q), q[0], q[-1], list(reversed(q))


def items_of_a_deque(v, t):
    q = deque(v, 3)
    q[0] = t
    q[1] += 1.0
    del q[2]
    q += [4.0, 4.0]
    other = deque([t, 3.0])
    return 4.0 in q, q.count(4.0), q == other, q != other, list(q + other), list(q.copy())


def classes(v, t):
    q, d, c = deque(), defaultdict(int), Counter()
    kinds = isinstance(q, deque), isinstance(d, dict), isinstance(c, dict), type(c) is Counter
    return kinds, type(d) is defaultdict, bool(q), not d, t


def an_empty_deque(v, t):
    try:
        return deque().popleft() + t
    except IndexError:
        return -t


def breadth_first(v, t):
    seen, order, q = {0}, [], deque([0])
    while q:
        node = q.popleft()
        order.append(node * t)
        for other, _ in GRAPH[node]:
            if other not in seen:
                seen.add(other)
                q.append(other)
    return order


def a_deque_in_a_loop(v, t):
    q = deque([1.0, 2.0, 3.0])
    for x in v:
        q[0] = q[0] * 0.5 + x
        q.rotate(1)
    return list(q)


def sums_by_key(v, t):
    sums = defaultdict(float)
    for name, x in zip("abab", v, strict=True):
        sums[name] += x * t
    return sums["a"], sums["c"], dict(sums), len(sums), "c" in sums, list(sums) == ["a", "b", "c"]


def lists_by_key(v, t):
    groups = defaultdict(list)
    for k, x in enumerate(v):
        groups[k % 2].append(x)
    found = {k: sum(xs) * t for k, xs in groups.items()}
    return found, max(groups, key=lambda k: len(groups[k])), groups.get(5), groups == {0: [], 1: []}


def a_factory_of_ones_own(v, t):
    marks = defaultdict(lambda: np.zeros(2))
    for k in (1, 2, 1):
        marks[k] += t
    return marks[1], marks[2], marks[3]


def a_default_in_a_branch(v, t):
    d = defaultdict(float, a=1.0)
    d.update({"b": t})
    if t > 2:
        d["a"] += t
    for _ in range(5):
        d["b"] = d["b"] * 0.5
    return d["a"], d["b"], d.pop("b"), d.setdefault("c", 3.0)


def no_factory(v, t):
    try:
        return defaultdict()["a"]
    except KeyError:
        return t


def counts(v, t):
    c = Counter("hello")
    c.update(["h", "x"])
    c.subtract({"e": 3})
    c["z"] += 2
    del c["q"], c["o"]
    top = c.most_common(2) == [("h", 2), ("l", 2)]
    return top, c["missing"], c.total() * t, sum(c.values()), list(c.values()), len(c)


def arithmetic_of_counts(v, t):
    a, b = Counter([1, 1, 2]), Counter([1, 3])
    joined = [dict(c) for c in (a + b, a - b, a & b, a | b)]
    return joined, list(a.elements()), a == Counter([2, 1, 1]), a == {1: 2, 2: 1}, t


def counts_in_place(v, t):
    """Operators in place change the counter, and drop what is not above zero."""
    c = Counter("aabd")
    names = d, e, f, g = [c, c, c, c]
    d += Counter("bc")
    e -= {"a": 1, "d": 2}
    f |= Counter(z=3, a=-1)
    g &= Counter(z=2, a=5, b=1)
    return dict(c), all(n is c for n in names), dict(-Counter(a=-1, b=2)), dict(+Counter(a=-1, b=2))


def counts_of_nothing(v, t):
    equal = Counter(a=2) == Counter(a=2, b=0), Counter(a=2, b=0) == {"a": 2}
    c = Counter(a=True)
    c.update(a=t)
    sums = Counter({"a": True}) + Counter({"b": True})
    given = dict(Counter({"a": True})), dict(Counter(iterable=3)), dict(sums)
    return equal, c["a"], given, len(defaultdict(None, default_factory=t))


def an_order(v, t):
    d = OrderedDict(a=t, b=2.0)
    d["c"] = v[0]
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = list(d) == ["c", "b", "a"]
    last, value = d.popitem()
    same_items = d == {"b": 2.0, "c": v[0]}, d == OrderedDict(b=2.0, c=1.0)
    return first, last == "a", value, list(d.values()), len(list(reversed(d))), same_items


def shortest_path(v, t):
    distance, waiting = dict.fromkeys(GRAPH, np.inf), [(0, 0)]
    distance[0] = 0
    while waiting:
        so_far, node = heapq.heappop(waiting)
        if so_far > distance[node]:
            continue
        for other, step in GRAPH[node]:
            if so_far + step < distance[other]:
                distance[other] = so_far + step
                heapq.heappush(waiting, (so_far + step, other))
    return distance[3] * t


def a_heap_of_pairs(v, t):
    h = [(5, v[0]), (2, t), (7, 1.0)]
    heapq.heapify(h)
    heapq.heappush(h, (1, v[1]))
    return heapq.heappop(h), heapq.heapreplace(h, (9, 0.0)), heapq.heappushpop(h, (0, t)), h


def the_smallest(v, t):
    return heapq.nsmallest(2, list(v)), heapq.nlargest(2, list(v), key=lambda x: abs(x - t))


def places_in_an_order(v, t):
    a = [1, 3, 5]
    bisect.insort(a, 4)
    return bisect.bisect_left(a, 3), bisect.bisect(a, 3), a, t


AGREE = [
    *(a_moving_mean, ends_of_a_deque, items_of_a_deque, classes, an_empty_deque, breadth_first),
    *(a_deque_in_a_loop, sums_by_key, lists_by_key, a_factory_of_ones_own, a_default_in_a_branch),
    *(no_factory, counts, arithmetic_of_counts, counts_in_place, counts_of_nothing, an_order),
    *(shortest_path, a_heap_of_pairs),
    *(the_smallest, places_in_an_order),
]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", AGREE, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    for t in (1.5, 4.0):
        assert not same.difference(compiled(VALUES, t), f(VALUES, t)), t


def test_derivatives_go_through() -> None:
    gradient = dl.compile(dl.grad(lambda v, t: sum(a_moving_mean(v, t)[2:]) + t))
    np.testing.assert_allclose(gradient(VALUES, 3.0), [1.0, 2.0, 2.0, 1.0])


def a_deque_of_two_lengths(v, t):
    q = deque([t])
    if t > 0:
        q.append(t)
    return len(q)


def a_deque_that_grows_in_its_loop(v, t):
    q = deque([t])
    for x in q:
        q.append(x)
    return q[0]


def a_result(v, t):
    return deque([t])


def a_mapping_as_a_result(v, t):
    return defaultdict(float, a=t)


def counts_of_numbers(v, t):
    return Counter([int(x) for x in v])[5]


def a_heap_of_numbers(v, t):
    h = [1.0]
    heapq.heappush(h, t)
    return h[0]


def a_place_of_a_number(v, t):
    return np.zeros(2)[bisect.bisect([0, 100], np.sum(v))]


def a_counter_and_a_dict(v, t):
    return Counter(a=1) + {"a": 1}


def a_deque_and_a_list(v, t):
    q, items = deque([t]), [t]
    return len(q + items)


def a_factory_that_is_none(v, t):
    return len(defaultdict([("a", t)]))


REFUSED = [
    (a_counter_and_a_dict, "DL119", "does not take Counter"),
    (a_deque_and_a_list, "DL112", "can only concatenate deque"),
    (a_factory_that_is_none, "DL112", "must be callable or None"),
    (a_deque_of_two_lengths, "DL108", "on one path"),
    (a_deque_that_grows_in_its_loop, "DL111", "changes in the loop"),
    (a_result, "DL118", r"list\(x\)"),
    (a_mapping_as_a_result, "DL118", r"dict\(x\)"),
    (counts_of_numbers, "DL107", "only the running program knows"),
    (a_place_of_a_number, "DL106", "bisect.bisect_right"),
]


@pytest.mark.parametrize(("f", "code", "words"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_it_is_refused(f: Callable[..., Any], code: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as raised:
        dl.compile(f, backend="reference")(VALUES, np.float64(3.0))
    assert raised.value.code == code
