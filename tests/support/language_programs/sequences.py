"""Dynamic programming, search, and machines that read programs."""

import numpy as np


def logsumexp(x, axis):
    top = np.max(x, axis=axis, keepdims=True)
    return np.squeeze(top, axis=axis) + np.log(np.sum(np.exp(x - top), axis=axis))


def hmm_forward(initial, transition, emission, observations):
    """The log-likelihood of a sequence; all three tables are logarithms."""
    alpha = initial + emission[:, observations[0]]
    for o in observations[1:]:
        alpha = logsumexp(alpha[:, None] + transition, 0) + emission[:, o]
    return logsumexp(alpha, 0)


def hmm_forward_backward(initial, transition, emission, observations):
    alphas = [initial + emission[:, observations[0]]]
    for t in range(1, len(observations)):
        step = logsumexp(alphas[-1][:, None] + transition, 0)
        alphas.append(step + emission[:, observations[t]])
    beta = initial * 0
    betas = [beta]
    for t in range(len(observations) - 1, 0, -1):
        beta = logsumexp(transition + (emission[:, observations[t]] + beta)[None], 1)
        betas.append(beta)
    gamma = np.stack(alphas) + np.stack(betas[::-1])
    return np.exp(gamma - logsumexp(gamma, 1)[:, None])


def viterbi(initial, transition, emission, observations):
    """The likeliest path and its score."""
    length = len(observations)
    score = initial + emission[:, observations[0]]
    back = np.zeros((length, initial.shape[0]), np.int64)
    for t in range(1, length):
        candidates = score[:, None] + transition
        come = np.argmax(candidates, axis=0)
        back = np.where((np.arange(length) == t)[:, None], come, back)
        score = np.max(candidates, axis=0) + emission[:, observations[t]]
    state = np.argmax(score)
    path = np.zeros(length, np.int64)
    for t in range(length - 1, -1, -1):
        path = np.where(np.arange(length) == t, state, path)
        state = back[t, state]
    return np.max(score), path


def beam_search(start, transition, steps):
    """The best three continuations, kept as scores and as rows of symbols."""
    width, symbols = 3, start.shape[0]
    first = np.argsort(-start)[:width]
    scores, rows = start[first], np.zeros((width, 6), np.int64)
    rows = np.where(np.arange(6) == 0, first[:, None], rows)
    last = first
    for t in range(steps):
        every = (scores[:, None] + transition[last]).reshape(-1)
        best = np.argsort(-every)[:width]
        scores, last = every[best], best % symbols
        rows = np.where(np.arange(6) == t + 1, last[:, None], rows[best // symbols])
    return scores, rows


def edit_distance(a, b, costs):
    """Levenshtein's with costs of our own for changing, leaving out and putting in."""
    change, omit, insert = costs
    row = insert * np.arange(len(b) + 1)
    for i in range(len(a)):
        left = omit * (i + 1)
        new = [left]
        for j in range(len(b)):
            same = row[j] + np.where(a[i] == b[j], 0.0, change)
            left = min(same, row[j + 1] + omit, left + insert)
            new.append(left)
        row = np.stack(new)
    return row[-1]


def soft_dtw(x, y, softness):
    """Soft dynamic time warping (Cuturi and Blondel, 2017)."""
    row = np.concatenate([np.zeros(1), np.full(len(y), 1e6)])
    for a in x:
        cost = (a - y) ** 2
        cells = [np.full((), 1e6)]
        for j in range(len(y)):
            ways = np.stack([row[j], row[j + 1], cells[-1]])
            low = np.min(ways)
            cells.append(cost[j] + low - softness * np.log(np.sum(np.exp((low - ways) / softness))))
        row = np.stack(cells)
    return row[-1]


def knapsack(values, weights, capacity):
    best = np.zeros(21)
    room = np.arange(21)
    for value, weight in zip(values, weights, strict=True):
        taken = np.where(room >= weight, value + best[np.maximum(room - weight, 0)], 0.0)
        best = np.maximum(best, taken)
    return best[capacity]


def longest_increasing_run(x):
    best = length = 1
    for i in range(1, len(x)):
        length = length + 1 if x[i] > x[i - 1] else 1
        best = max(best, length)
    return best


def shortest_paths(distances, source):
    """Bellman and Ford, until nothing improves."""
    n = distances.shape[0]
    best = np.where(np.arange(n) == source, 0.0, 1e9)
    changed = True
    while changed:
        after = np.minimum(best, np.min(best[:, None] + distances, axis=0))
        changed = np.any(after < best)
        best = after
    return best


def binary_search(sorted_numbers, x):
    low, high = 0, len(sorted_numbers)
    while low < high:
        middle = (low + high) // 2
        if sorted_numbers[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


def bubble_sort(x):
    """Until a pass swaps nothing."""
    n, swapped = len(x), True
    places = np.arange(n)
    while swapped:
        swapped = False
        for i in range(n - 1):
            if x[i] > x[i + 1]:
                order = np.where(places == i, i + 1, np.where(places == i + 1, i, places))
                x = x[order]
                swapped = True
    return x


def insertion_sort(numbers):
    done = []
    for x in numbers:
        for k in range(len(done)):
            small, x = min(done[k], x), max(done[k], x)
            done[k] = small
        done.append(x)
    return done


def virtual_machine(program, x):
    """A machine with one register and an accumulator; a program is rows of (code, number)."""
    add, multiply, jump_if_small, halt = 0, 1, 2, 3
    accumulator, counter, cycles = x, 0, 0
    while cycles < 100:
        code, number = program[counter, 0], program[counter, 1]
        cycles += 1
        counter += 1
        if code == halt:
            break
        if code == add:
            accumulator = accumulator + number
        elif code == multiply:
            accumulator = accumulator * number
        elif code == jump_if_small:
            if accumulator < 50.0:
                counter = number
        else:
            continue
    return accumulator, cycles


def stack_machine(code, x):
    """Reverse Polish; what each code does is a function, chosen by the running program."""

    def push_x(stack, top):
        return np.where(np.arange(8) == top, x, stack), top + 1

    def two(operation):
        def run(stack, top):
            value = operation(stack[top - 2], stack[top - 1])
            return np.where(np.arange(8) == top - 2, value, stack), top - 1

        return run

    def sine(stack, top):
        return np.where(np.arange(8) == top - 1, np.sin(stack), stack), top

    instructions = (push_x, two(lambda a, b: a + b), two(lambda a, b: a * b), sine)
    stack, top = np.zeros(8), 0
    for c in code:
        stack, top = instructions[c](stack, top)
    return stack[0]


def tape_machine(tape, steps):
    """A busy beaver of two states."""
    state, head = 0, len(tape) // 2
    for _ in range(steps):
        mark = tape[head]
        tape = np.where(np.arange(len(tape)) == head, 1, tape)
        right = (state == 0) == (mark == 0)
        stop = (state == 1) and (mark == 1)
        head = head + 1 if right else head - 1
        state = 1 - state if mark == 0 else state
        if stop:
            break
    return tape, head


rng = np.random.default_rng(2)
INITIAL = np.log(np.array([0.6, 0.3, 0.1]))
TRANSITION = np.log(rng.dirichlet(np.ones(3), 3))
EMISSION = np.log(rng.dirichlet(np.ones(4), 3))
SEEN = np.array([0, 2, 1, 3, 3])
HMM = (INITIAL, TRANSITION, EMISSION, SEEN)
F, N = np.float64, np.int64
PROGRAMS = [
    (hmm_forward, HMM, (0, 1, 2)),
    (hmm_forward_backward, HMM, (0, 1, 2)),
    (viterbi, HMM, (0, 1, 2)),
    (beam_search, (rng.normal(size=5), rng.normal(size=(5, 5)), N(4)), (0, 1)),
    (
        edit_distance,
        (np.array([1, 2, 3, 1]), np.array([2, 3, 3]), np.array([1.1, 0.8, 0.9])),
        (2,),
    ),
    (soft_dtw, (rng.normal(size=3), rng.normal(size=4), F(0.5)), (0, 1, 2)),
    (knapsack, (np.array([6.1, 5.0, 4.0, 3.3]), np.array([5, 4, 3, 2]), N(9)), (0,)),
    (longest_increasing_run, (rng.normal(size=9),), ()),
    (shortest_paths, (np.abs(rng.normal(size=(5, 5))) + 0.1, N(1)), (0,)),
    (binary_search, (np.sort(rng.normal(size=12)), F(0.3)), ()),
    (bubble_sort, (rng.normal(size=6),), (0,)),
    (insertion_sort, (rng.normal(size=5),), (0,)),
    (
        virtual_machine,
        (np.array([[0, 3], [1, 2], [2, 0], [0, -7], [7, 0], [3, 0]]), F(1.5)),
        (1,),
    ),
    (stack_machine, (np.array([0, 0, 2, 3, 0, 1]), F(0.9)), (1,)),
    (tape_machine, (np.zeros(11, N), N(30)), ()),
]
