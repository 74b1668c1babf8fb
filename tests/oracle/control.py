"""Branches, loops, `match` and `try`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .samples import copied, is_number
from .writer import Skip, Writer, construct, indented

#: Blocks within blocks.
_DEPTH_MAX = 3


def _deeper(w: Writer) -> None:
    if w.depth >= _DEPTH_MAX:
        raise Skip


def _few(w: Writer) -> int:
    return w.rng.choice((1, 1, 2, 2, 3))


@construct("statement", "if", 6)
def branch(w: Writer) -> list[str]:
    _deeper(w)
    lines = [f"if {w.fill('<c>')}:", *w.block(_few(w))]
    if w.rng.random() < 0.2:
        w.used.append("elif")
        lines += [f"elif {w.fill('<c>')}:", *w.block(1)]
    if w.rng.random() < 0.5:
        lines += ["else:", *w.block(_few(w))]
    return lines


@construct("statement", "a name of both paths", 1.5)
def both(w: Writer) -> list[str]:
    _deeper(w)
    test, name = w.fill("<c>"), w.new()
    first = w.fill("<e>")
    lines = [f"if {test}:", *w.block(w.rng.randrange(2)), f"    {name} = {first}"]
    lines += ["else:", *w.block(w.rng.randrange(2)), f"    {name} = {w.like(w.value(first))}"]
    w.frame.names.append(name)
    return [line for line in lines if line != "    pass"]


def _loop(w: Writer, head: str, bound: dict[str, Any], first: list[str] | None = None) -> list[str]:
    """A loop: its body, and perhaps what leaves it."""
    w.loops += 1
    try:
        body = [*indented(first or []), *w.block(_few(w), bound)]
    finally:
        w.loops -= 1
    lines = [head, *body]
    if w.daring and w.rng.random() < 0.15:
        w.used.append("else of a loop")
        lines += ["else:", *w.block(1)]
    return lines


@construct("statement", "break or continue", 2)
def leave_round(w: Writer) -> list[str]:
    if not w.loops:
        raise Skip
    lines = [f"if {w.fill('<c>')}:", *w.block(w.rng.choice((0, 0, 1)))]
    lines = [line for line in lines if line != "    pass"]
    kind = w.rng.random()
    if kind < 0.15 and not w.nested:
        w.used.append("return from a loop")
        return [*lines, f"    {w.returned()}"]
    word = "break" if kind < 0.6 else "continue"
    w.used.append(word)
    return [*lines, f"    {word}"]


@construct("statement", "for of a range", 5)
def counted(w: Writer) -> list[str]:
    _deeper(w)
    index = w.new("i")
    bounds = w.rng.choice(("3", "2", "1, 4", "3, 0, -1", "0, 6, 2", "0", "len(<v>)", "len(<l>)"))
    if w.rng.random() < 0.25:
        w.used.append("for of a running range")
        bounds = w.place(lambda v: type(v) is int and 0 <= v < 8)
        bounds = bounds if not w.odd else f"{bounds} % 5"
    bounds = w.fill(bounds)
    first = next(iter(w.value(f"range({bounds})")), 0)
    return _loop(w, f"for {index} in range({bounds}):", {index: first})


@construct("statement", "for of items", 5)
def over(w: Writer) -> list[str]:
    _deeper(w)
    forms = ("<u>", "<l>", "<v>", "<m>", "<M>", "<a>", "(1, 2, 3)", "reversed(<u>)", "<L>")
    source = w.fill(w.rng.choice(forms))
    values = w.value(f"list({source})")
    if len(values) > 8:
        raise Skip
    name = w.new("e")
    return _loop(w, f"for {name} in {source}:", {name: values[0] if values else 0})


@construct("statement", "for of computed items", 2)
def computed(w: Writer) -> list[str]:
    """Items whose function reads a name, or what a name holds, which the body may change."""
    _deeper(w)
    forms = (
        ("<S>", "map(lambda w: w + {0}, <u>)", "{0} += 1"),
        ("<S>", "(w * {0} for w in <u>)", "{0} = <n>"),
        ("<S>", "filter(lambda w: w != {0}, <u>)", "{0} -= 1"),
        ("<S>", "({0} for w in <v> if w > {0})", "{0} += <n>"),
        ("<L>", "map(lambda w: len({0}), <u>)", "{0}.append(<n>)"),
        ("<L>", "({0}[0] for w in (1, 2))", "{0}[0] = <n>"),
        ("<V>", "({0}[0] + w for w in (1, 2))", "{0}[0] = <n>"),
    )
    read, form, change = w.rng.choice(forms)
    read = w.fill(read)
    source = w.fill(form.format(read))
    values = w.value(f"list({source})")
    if not values or len(values) > 6:
        raise Skip
    name = w.new("e")
    first = [w.fill(change.format(read))] if w.rng.random() < 0.3 else []
    return _loop(w, f"for {name} in {source}:", {name: values[0]}, first)


@construct("statement", "generator function", 2)
def generated(w: Writer) -> list[str]:
    """A generator that may change what it gives, print or end early, and a use of it."""
    _deeper(w)
    name, item = w.new("g"), w.new("e")
    source = w.fill(w.rng.choice(("<u>", "<v>", "<l>", "<L>", "(1, 2, 3)", "<M>")))
    held = w.fill(w.rng.choice(("<V>", "<L>")))
    forms = ("v", "v", "(k, v)", "v * <n>", "[v, k]", held, f"{held}[0]")
    given = f"yield {w.fill(w.rng.choice(forms))}"
    if w.rng.random() < 0.15:
        given = f"yield from ({w.fill('<n>')}, v)"
    changes = (f"{held}[0] = k", "print(k)", "if k == 1: return", "k += 1", f"v = {held}[0]")
    more = [w.rng.choice(changes)] if w.rng.random() < 0.4 else []
    body = [*more, given] if w.rng.random() < 0.5 else [given, *more]
    made = [f"def {name}(items):", "    for k, v in enumerate(items):"]
    made += ["        " + line for line in body]
    call = f"{name}({source})"
    env = copied(w.env)
    try:
        exec("\n".join(made), env)
        values = eval(f"list({call})", env)
    except Exception as e:
        raise Skip(str(e)) from None
    if not values or len(values) > 8:
        raise Skip
    if w.rng.random() < 0.4:
        return [*made, *_loop(w, f"for {item} in {call}:", {item: values[0]})]
    forms = (
        *("<N> = list({0})", "<N> = [{1} for {1} in {0}]", "<N>, *<N> = {0}"),
        *("<N> = list(zip({0}, (1, 2)))", "<N> = any({1} is None for {1} in {0})"),
        *("<N> = <n> in {0}", "<N> = sum(1 for {1} in {0})"),
    )
    return [*made, w.fill(w.rng.choice(forms).format(call, item))]


@construct("statement", "for of several", 3)
def several(w: Writer) -> list[str]:
    _deeper(w)
    forms = ("zip(<u>, <u>)", "enumerate(<u>)", "enumerate(<v>)", "zip(<v>, <u>)", "<d>.items()")
    source = w.fill(w.rng.choice((*forms, "enumerate(<M>)", "[(<n>, <n>), (<n>, <n>)]")))
    values = w.value(f"list({source})")
    if not values or len(values) > 8:
        raise Skip
    names = w.new("e"), w.new("e")
    return _loop(
        w, f"for {names[0]}, {names[1]} in {source}:", dict(zip(names, values[0], strict=True))
    )


@construct("statement", "rows changed in a loop", 1.5)
def rows_changed(w: Writer) -> list[str]:
    _deeper(w)
    source, name = w.fill("<M>"), w.new("row")
    forms = ("{0} -= {0}.mean()", "{0}[0] = {0}[-1]", "{0} += 1", "{0}[1:] = {0}[:-1]", "{0} *= 2")
    changed = w.rng.choice(forms).format(name)
    return [f"for {name} in {source}:", f"    {changed}"]


@construct("statement", "while", 2.5)
def while_(w: Writer) -> list[str]:
    _deeper(w)
    count = w.new("c")
    limit = w.fill(w.rng.choice(("<S>", "2", "3", "len(<v>)", "<n>")))
    value = w.value(limit)
    if not is_number(value) or isinstance(value, bool | np.bool_ | complex) or not value < 8:
        raise Skip
    # What the body changes must not make it endless.
    test = f"{count} < {limit}" if limit.isdigit() else f"{count} < {limit} and {count} < 5"
    if w.rng.random() < 0.5:
        test = f"{count} < 3 and {w.fill('<c>')}"
    w.env[count] = 0
    loop = _loop(w, f"while {test}:", {}, [f"{count} += 1"])
    # The counter is no name that others may set.
    return [f"{count} = 0", *loop]


@construct("statement", "list changed while it is iterated", 0.5)
def grows(w: Writer) -> list[str]:
    _deeper(w)
    made, item = w.fill("<L>"), w.new("e")
    if not all(is_number(v) for v in w.value(made)):
        raise Skip
    changed = w.rng.choice((f"{made}.append({w.fill('<n>')})", f"{made}.pop()"))
    return [f"for {item} in {made}:", f"    if len({made}) < 5:", f"        {changed}"]


@construct("statement", "match on a number", 1)
def match(w: Writer) -> list[str]:
    _deeper(w)
    subject = w.fill("<n>")
    lines = [f"match {subject}:"]
    cases = [
        "0",
        "1 | 2",
        "float()",
        "int()",
        "bool()",
        "2.5",
        "None",
        "np.ndarray()",
        "k if k > 1",
    ]
    for case in w.rng.sample(cases, w.rng.randrange(1, 3)):
        lines += indented([f"case {case}:", *w.block(1)])
    if w.rng.random() < 0.6:
        lines += indented(["case _:", *w.block(1)])
    return lines


@construct("statement", "match on a structure", 1)
def match_structure(w: Writer) -> list[str]:
    _deeper(w)
    subject = w.fill(w.rng.choice(("(<n>, <e>)", "<l>", "<d>", "[<n>, <n>]", "('add', <n>)")))
    value = w.value(subject)
    first, rest = w.new("e"), w.new("e")
    if isinstance(value, dict) and value:
        key = next(iter(value))
        case, bound = f"{{{key!r}: {first}}}", {first: value[key]}
    elif isinstance(value, list | tuple) and value:
        case, bound = f"({first}, *{rest})", {first: value[0], rest: list(value[1:])}
        if isinstance(value[0], str) and len(value) > 1:
            case, bound = f"('add', {first})", {first: value[1]}
    else:
        raise Skip
    lines = [f"match {subject}:"]
    if w.rng.random() < 0.4:
        lines += indented([f"case [1, {first}]:", *w.block(1, {first: 0})])
    lines += indented([f"case {case}:", *w.block(_few(w), bound)])
    if w.rng.random() < 0.4:
        lines += indented(["case _:", *w.block(1)])
    return lines


@construct("statement", "return from a branch", 1)
def leave(w: Writer) -> list[str]:
    if w.nested or w.depth >= _DEPTH_MAX:
        raise Skip
    return [f"if {w.fill('<c>')}:", *w.block(w.rng.randrange(2)), f"    {w.returned()}"]


@construct("statement", "raise", 1.5, rare=True)
def raise_(w: Writer) -> list[str]:
    """One that the first call, as a rule, does not reach."""
    test = w.fill("<c>")
    if w.value(f"bool({test})") and w.rng.random() < 0.95:
        test = f"not ({test})"
    error = w.rng.choice(("ValueError('no')", "TypeError", "ValueError(f'{<i>}')", "KeyError('a')"))
    return [f"if {test}:", f"    raise {w.fill(error)}"]


#: What may raise an error, and its class.
_RISKY = (
    ("<p> // <p>", "ZeroDivisionError"),
    ("<p> % <p>", "ArithmeticError"),
    ("<n> / <p>", "ZeroDivisionError"),
    ("math.sqrt(<p>)", "ValueError"),
    ("math.log(<p>)", "(KeyError, ValueError)"),
    ("int(<n> / <n>)", "(ZeroDivisionError, ValueError, OverflowError)"),
    ("<v>[int(<p>)]", "(LookupError, ValueError, OverflowError)"),
    ("<n> + {'a': <n>}[<e>]", "Exception"),
    ("[<n>, <n>][<i>]", "IndexError"),
)


@construct("statement", "try", 2)
def try_(w: Writer) -> list[str]:
    """What may raise an error, perhaps in a loop, a function or a branch; and a handler."""
    _deeper(w)
    rng = w.rng
    text, error = rng.choice(_RISKY)
    name, risky = w.new(), w.fill(text)
    body = [f"    {name} = {risky}"]
    draw = rng.random()
    if draw < 0.3:
        body = [f"    if {w.fill('<c>')}:", f"        raise {w.fill('ValueError(<e>)')}"]
        error = "ValueError"
    elif draw < 0.4:
        body, error = [f"    assert {w.fill('<c>')}"], "AssertionError"
    elif draw < 0.5:
        body = [f"    if {w.fill('<c>')}:", f"        {name} = {risky}"]
    elif draw < 0.6:
        places = [f"        {name} = {risky}", *indented(w.block(1))]
        body = [f"    for {w.new('k')} in range({rng.choice('123')}):", *places]
    elif draw < 0.7:
        made = w.new("g")
        head = [f"    def {made}(a):", f"        return a + {risky}"]
        body = [*head, f"    {name} = {made}({w.fill('<n>')})"]
    error = error if rng.random() < 0.85 else rng.choice(("Exception", "TypeError", "ValueError"))
    start = [f"{name} = {w.fill('<n>')}"]
    lines = [*start, "try:", *w.block(rng.randrange(3)), *body, *w.block(rng.randrange(3))]
    lines += [f"except {error}:", *_handler(w, name)]
    if rng.random() < 0.3:
        lines += [f"except {rng.choice(('ArithmeticError', 'LookupError', 'Exception'))}:"]
        lines += _handler(w, name)
    if rng.random() < 0.2:
        lines += ["else:", *w.block(1)]
    if rng.random() < 0.2:
        lines += ["finally:", *w.block(1)]
    w.frame.names.append(name)
    return [line for k, line in enumerate(lines) if line != "    pass" or _is_alone(lines, k)]


def _handler(w: Writer, name: str) -> list[str]:
    """The body of a handler."""
    lines = w.block(1)
    if w.rng.random() < 0.4:
        lines.append(f"    {name} = {w.fill('<n>')}")
    draw = w.rng.random()
    if draw < 0.1:
        lines.append("    raise")
    elif draw < 0.25 and w.loops:
        lines.append(f"    {w.rng.choice(('continue', 'break'))}")
    elif draw < 0.35 and not w.nested:
        lines.append(f"    {w.returned()}")
    return lines


def _is_alone(lines: list[str], k: int) -> bool:
    """Whether a block has no other line."""
    after = lines[k + 1] if k + 1 < len(lines) else "x"
    return not lines[k - 1].startswith(" ") and not after.startswith(" ")


@construct("statement", "generator function", 1.5, rare=True)
def generator(w: Writer) -> list[str]:
    _deeper(w)
    made = w.new("g")
    head = [f"def {made}():", f"    yield {w.fill('<n>')}", f"    yield {w.fill('<n>')}"]
    return [*head, f"{w.fill('<N>')} = list({made}())"]


# -- lists that loops make

#: What a loop goes through, and its names with an expression for the value of each.
_SOURCES = (
    ("{0} in <v>", ("<v>[0]",)),
    ("{0} in <u>[:4]", ("<u>[0]",)),
    ("{0} in range(<i> % 4)", ("1",)),
    ("{0}, {1} in enumerate(<v>)", ("1", "<v>[0]")),
    ("{0}, {1} in zip(<v>, <u>[:4])", ("<v>[0]", "<u>[0]")),
)
_ROWS = ("[<n>, {0}]", "[{0} * <n> for _ in range(3)]", "[b + {0} for b in <u>]", "[{0}] * 2")


@construct("statement", "list that a loop makes", 2)
def appended(w: Writer) -> list[str]:
    """Numbers or new lists that a loop appends, one a round, and what else may hold them."""
    _deeper(w)
    source, values = w.rng.choice(_SOURCES)
    names = [w.new("e") for _ in values]
    head = w.fill(source.format(*names))
    made, row, rng = w.new("l"), w.new("r"), w.rng
    bound = {name: w.value(w.fill(value)) for name, value in zip(names, values, strict=True)}
    item = f"{names[-1]} * {w.fill('<n>')}"
    body = w.block(rng.randrange(2), bound)
    if rng.random() < 0.4:
        item = row
        body.append(f"    {row} = {w.fill(rng.choice(_ROWS).format(names[0]))}")
    body.append(f"    {made}.append({item})")
    after: list[str] = []
    draw = rng.random() if item == row else 1.0
    if draw < 0.15:
        body.append(f"    {row}[0] = {w.fill('<n>')}")
    elif draw < 0.3:
        after = [f"if {made}:", f"    {row}[-1] = {w.fill('<n>')}"]
    elif draw < 0.5:
        after = [f"if {made}:", f"    {made}[0][-1] = {w.fill('<n>')}"]
    elif draw < 0.6:
        body.append(f"    {made}.append({row})")
    if item != row and rng.random() < 0.15:
        body.append(f"    {w.new('k')} = len({made})")
    w.frame.names.append(made)
    body = [line for line in body if line != "    pass"]
    return [f"{made} = []", f"for {head}:", *body, *after]
