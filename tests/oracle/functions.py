"""Nested functions, closures, helpers of the module, default arguments, recursion."""

from __future__ import annotations

import types
from typing import Any

from .writer import Skip, Writer, construct, table

_MAKERS = ("<n>", "<a>", "<e>", "<n>", "<v>")


def _result(w: Writer) -> str:
    def made() -> str:
        return w.fill(w.rng.choice(("<n>", "<a>", "<e>", "<e>")))

    return made() if w.rng.random() < 0.85 else f"{made()}, {made()}"


def parameters(w: Writer, count: int) -> tuple[list[str], dict[str, Any]]:
    """Expressions to pass, and the names and values that a function has of them."""
    texts = [w.fill(w.rng.choice(_MAKERS)) for _ in range(count)]
    return texts, {w.new("p"): w.value(text) for text in texts}


@construct("statement", "nested function", 3)
def nested(w: Writer) -> list[str]:
    """A function that reads names around it, and may change the arrays among them, called."""
    if w.depth >= 3:
        raise Skip
    name = w.new("g")
    texts, bound = parameters(w, w.rng.randrange(3))
    head = list(bound)
    passed = list(texts)
    if w.rng.random() < 0.3:
        w.used.append("default argument")
        extra = w.new("p")
        default = w.fill(w.rng.choice(("<n>", "<e>")))
        head.append(f"{extra}={default}")
        bound[extra] = w.value(default)
        if w.rng.random() < 0.3:
            passed.append(f"{extra}={w.like(bound[extra])}")
    body = w.function(bound, w.rng.randrange(3), lambda: _result(w))
    made = [f"def {name}({', '.join(head)}):", *body]
    if w.rng.random() < 0.3:
        w.used.append("closure over a name set later")
        made += w.statement() if not w.depth else []
    calls = [f"{w.fill('<N>')} = {name}({', '.join(passed)})"]
    if w.rng.random() < 0.4:
        again = [w.like(v) for v in list(bound.values())[: len(texts)]]
        calls.append(f"{w.fill('<N>')} = {name}({', '.join(again)})")
    return [*made, *calls]


@construct("statement", "function that is passed", 1)
def passed(w: Writer) -> list[str]:
    """A function that calls its argument, or gives a function."""
    outer, inner = w.new("g"), w.new("g")
    if w.rng.random() < 0.5:
        value = w.fill(w.rng.choice(("<n>", "<a>")))
        lines = [f"def {outer}(a):", f"    def {inner}(b):", "        return a + b"]
        lines += [f"    return {inner}", f"{w.fill('<N>')} = {outer}({value})({w.fill('<n>')})"]
        return lines
    form = w.rng.choice(
        ("lambda b: b * 2", "lambda b: b + <n>", "abs", "np.sqrt", "float", "np.sum")
    )
    value = w.fill(w.rng.choice(("<n>", "<a>")))
    lines = [f"def {outer}(a, b):", "    return a(b)"]
    return [*lines, f"{w.fill('<N>')} = {outer}({w.fill(form)}, {value})"]


@construct("statement", "closure that changes", 1.5)
def changes(w: Writer) -> list[str]:
    """A function that changes an array, list or dict around it."""
    name = w.new("g")
    form = w.rng.choice(
        ("<V>[<k>] += b", "<A> *= b", "<L>.append(b)", "<D>['a'] = b", "<V>[0] = b")
    )
    w.env["b"] = w.value(text := w.fill("<n>"))
    target = w.fill(form)
    if "*=" in target:
        target = target.replace(" *= b", "[...] = b")
    result = w.rng.choice(("None", "b", "b + 1"))
    calls = [f"{name}({text})", f"{name}({w.fill('<n>')})"][: w.rng.randrange(1, 3)]
    if w.rng.random() < 0.3:
        calls[-1] = f"{w.fill('<N>')} = {calls[-1]}" if result != "None" else calls[-1]
    return [f"def {name}(b):", f"    {target}", f"    return {result}", *calls]


@construct("statement", "shared default argument", 0.7)
def shared(w: Writer) -> list[str]:
    name = w.new("g")
    lines = [f"def {name}(a, kept=[]):", "    kept.append(a)"]
    lines.append(f"    return {w.rng.choice(('len(kept)', 'kept[0]', 'kept[-1]', 'sum(kept)'))}")
    calls = [f"{w.fill('<N>')} = {name}({w.fill('<n>')})" for _ in range(2)]
    return [*lines, *calls]


@construct("statement", "recursion", 0.7)
def recursion(w: Writer) -> list[str]:
    name, depth = w.new("g"), w.rng.choice(("2", "3", "0", "1"))
    if w.daring and w.rng.random() < 0.1:
        depth = "<S>"
    count = w.fill(depth)
    if not w.value(count) < 8:
        raise Skip
    count = f"{count} % 4" if w.odd else count
    step = w.rng.choice(("a + <n>", "a * 2", "a - 1"))
    lines = [f"def {name}(a, n):", "    if n <= 0:", "        return a"]
    lines.append(f"    return {name}({w.fill(step)}, n - 1)")
    return [*lines, f"{w.fill('<N>')} = {name}({w.fill('<n>')}, {count})"]


@construct("statement", "choice of functions", 0.7)
def choice(w: Writer) -> list[str]:
    name, test = w.new("g"), w.fill("<c>")
    lines = [f"if {test}:", f"    {name} = lambda a: a + {w.fill('<n>')}", "else:"]
    lines.append(f"    {name} = lambda a: a * {w.fill('<n>')}")
    return [*lines, f"{w.fill('<N>')} = {name}({w.fill('<n>')})"]


# -- helpers of the module: those that stand there, and those that are written

#: Each with a call.
HELPERS = (
    ("def bump(v, k):\n    v[k] = v[k] * 2 - 1", ("bump(<V>, <k>)", "bump(<V>[<g>], 0)")),
    ("def pour(v, w):\n    v += w.sum()\n    return v", ("<N> = pour(<A>, <a>)", "pour(<V>, <n>)")),
    (
        "def first(v):\n    return v[0]",
        ("<N> = first(<m>)", "<N> = first(<l>)", "<N> = first(<M>)"),
    ),
    (
        "def centred(v):\n    v -= v.mean()",
        ("centred(<F>)", "centred(<M>[0])", "centred(<V>[<g>])"),
    ),
    (
        "def fact(n):\n    return 1 if n <= 1 else n * fact(n - 1)",
        ("<N> = fact(<i>)", "<N> = fact(3)"),
    ),
    (
        "def spread(*args, scale=2, **more):\n    return sum(args) * scale + len(more)",
        ("<N> = spread(<n>, <n>)", "<N> = spread(<n>, scale=<n>, z=1)", "<N> = spread(*<u>)"),
    ),
    (
        "def kept(v, acc=[]):\n    acc = acc + [v]\n    return acc",
        ("<N> = kept(<n>)", "<N> = kept(<e>, [<n>])"),
    ),
    (
        "def put(d, key, v):\n    d[key] = v\n    return len(d)",
        ("<N> = put(<D>, <q>, <e>)", "put(<D>, 'a', <n>)"),
    ),
    (
        "def push(items, v):\n    items.append(v)\n    return items",
        ("<N> = push(<L>, <e>)", "push(<L>, <n>)"),
    ),
    (
        "def search(items, v):\n    for k, b in enumerate(items):\n        if b == v:\n"
        "            break\n    else:\n        k = -1\n    return k",
        ("<N> = search(<u>, <n>)", "<N> = search(<v>, <n>)"),
    ),
    (
        "def until(v, limit):\n    rounds = 0\n    while v < limit and rounds < 6:\n"
        "        v = v * 2 + 1\n        rounds += 1\n    return v",
        ("<N> = until(abs(<n>), 5)", "<N> = until(1.5, <n>)"),
    ),
    (
        "def of_class(v):\n    if isinstance(v, bool):\n        return 1\n"
        "    if isinstance(v, int):\n        return 2\n    if isinstance(v, float):\n"
        "        return 3\n    if isinstance(v, np.generic):\n        return 4\n"
        "    return 5 if isinstance(v, np.ndarray) else 6",
        ("<N> = of_class(<n>)", "<N> = of_class(<e>)", "<N> = of_class(<a>)"),
    ),
)


@construct("statement", "helper", 4)
def helper(w: Writer) -> list[str]:
    found = [name for name, _ in _calls(w)]
    if not found:
        raise Skip
    name = w.rng.choice(found)
    text = w.rng.choice(dict(_calls(w))[name])
    w.used.append(f"helper {name}")
    return [w.fill(text)]


def _calls(w: Writer) -> list[tuple[str, tuple[str, ...]]]:
    named = {source.split("(")[0][4:]: calls for source, calls in HELPERS}
    return [(name, calls) for name, calls in named.items() if name in w.env]


@construct("statement", "written helper", 2)
def written(w: Writer) -> list[str]:
    found = {n: f for n, f in w.env.items() if isinstance(f, types.FunctionType)}
    names = sorted(name for name, f in found.items() if hasattr(f, "samples"))
    if not names:
        raise Skip
    name = w.rng.choice(names)
    args = [w.like(v) for v in found[name].samples]
    return [f"{w.fill('<N>')} = {name}({', '.join(args)})"]


def write_helper(w: Writer, name: str, values: dict[str, Any]) -> list[str]:
    """A function of the module, written at random, of parameters that have such values."""
    body = w.function(values, w.rng.randrange(1, 4), lambda: _result(w))
    return [f"def {name}({', '.join(values)}):", *body]


table(
    "statement",
    r"""
    map and filter 0.7: <N> = list(map(lambda a: a * <n>, <u>)) ;; <N> = [*map(float, <u>)]
    map and filter 0.7: <N> = sorted([3, 1, 2], key=lambda a: -a)
    partial 0.5: <N> = functools.partial(np.add, <n>)(<n>)
    partial 0.5: <N> = functools.partial(lambda a, b: a - b, b=<n>)(<n>)
    """,
)
