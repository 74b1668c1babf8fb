"""Random functions of floats, full of branches, loops and escapes."""

from __future__ import annotations

import random as python_random

FLOATS = ("x", "y", "z")
INTS = ("m", "n")


class Writer:
    """Writes one function of (x, y: f64; n: i64), statement by statement."""

    def __init__(self, seed: int) -> None:
        self.choose = python_random.Random(seed)
        self.loops = 0

    def function(self) -> str:
        head = ["import numpy as np", "", "def f(x, y, n):", "    z, m = 0.5, 1"]
        body = self.block(1, 0, self.choose.randint(3, 5))
        return "\n".join([*head, *body, "    return x, y, z, m, n"]) + "\n"

    def block(self, depth: int, loops: int, count: int) -> list[str]:
        lines: list[str] = []
        for _ in range(count):
            lines += self.statement(depth, loops)
        return lines

    def statement(self, depth: int, loops: int) -> list[str]:
        kinds = ["float", "float", "int", "pair"]
        if depth < 4:
            kinds += ["if", "if", "for", "while", "list", "match", "closure", "recursion"]
            kinds += ["choice"]
        if loops:
            kinds += ["break", "continue"]
        if depth > 1:
            kinds.append("return")
        return getattr(self, f"write_{self.choose.choice(kinds)}")(depth, loops)

    def write_float(self, depth: int, loops: int) -> list[str]:
        return [f"{'    ' * depth}{self.choose.choice(FLOATS)} = {self.number(2)}"]

    def write_int(self, depth: int, loops: int) -> list[str]:
        name = self.choose.choice(INTS)
        return [f"{'    ' * depth}{name} = ({self.whole()} * 3 + {self.whole()}) % 7"]

    def write_pair(self, depth: int, loops: int) -> list[str]:
        a, b = self.choose.sample(FLOATS, 2)
        return [f"{'    ' * depth}{a}, {b} = {b}, {self.number(1)}"]

    def write_list(self, depth: int, loops: int) -> list[str]:
        pad = "    " * depth
        name, k = self.choose.choice(FLOATS), self.choose.randint(0, 1)
        inner = self.block(depth + 1, 0, 1)
        return [
            f"{pad}items = [{self.number(1)}, {self.number(1)}]",
            f"{pad}if {self.test()}:",
            f"{pad}    items[{k}] = {self.number(1)}",
            *inner,
            f"{pad}{name} = items[0] - items[1]",
        ]

    def write_if(self, depth: int, loops: int) -> list[str]:
        pad = "    " * depth
        lines = [f"{pad}if {self.test()}:", *self.block(depth + 1, loops, 2)]
        if self.choose.random() < 0.3:
            lines += [f"{pad}elif {self.test()}:", *self.block(depth + 1, loops, 1)]
        if self.choose.random() < 0.6:
            lines += [f"{pad}else:", *self.block(depth + 1, loops, 2)]
        return lines

    def write_match(self, depth: int, loops: int) -> list[str]:
        pad = "    " * (depth + 1)
        subject = self.choose.choice(["n % 4", "(n % 2, m)", "m"])
        first = {"(n % 2, m)": "(1, k)", "m": "1 | 5"}.get(subject, "0")
        lines = [f"{pad[4:]}match {subject}:", f"{pad}case {first} if {self.test()}:"]
        lines += self.block(depth + 2, loops, 1)
        second = {"(n % 2, m)": "(0, 2)"}.get(subject, "2")
        lines += [f"{pad}case {second}:", *self.block(depth + 2, loops, 1)]
        if self.choose.random() < 0.5:
            lines += [f"{pad}case _:", *self.block(depth + 2, loops, 1)]
        return lines

    def write_closure(self, depth: int, loops: int) -> list[str]:
        """A function that either branch makes, of names that change before it is called."""
        self.loops += 1
        pad, name, held = "    " * depth, f"g{self.loops}", f"w{self.loops}"
        a, b, c = self.choose.choice(FLOATS), self.choose.choice(FLOATS), self.number(1)
        return [
            f"{pad}{held} = {self.number(1)}",
            f"{pad}if {self.test()}:",
            f"{pad}    {held} = {self.number(1)}",
            f"{pad}    {name} = lambda v: np.tanh(v * {a} + {held})",
            f"{pad}elif {self.test()}:",
            f"{pad}    {name} = (lambda s: lambda v: np.tanh(v - s))({self.number(1)})",
            f"{pad}else:",
            f"{pad}    def {name}(v):",
            f"{pad}        return np.tanh(v) if {self.test()} else {b} * 0.5",
            *self.write_float(depth, loops),
            f"{pad}{self.choose.choice(FLOATS)} = {name}({c})",
        ]

    def write_choice(self, depth: int, loops: int) -> list[str]:
        functions = f"(np.tanh, lambda v: np.tanh(v + {self.number(1)}), np.sin)"
        index = self.choose.choice(["n % 3", "m % 3", "-(n % 3) - 1"])
        name = self.choose.choice(FLOATS)
        return [f"{'    ' * depth}{name} = {functions}[{index}]({self.number(1)})"]

    def write_recursion(self, depth: int, loops: int) -> list[str]:
        self.loops += 1
        pad, name = "    " * depth, f"r{self.loops}"
        free = self.choose.choice(FLOATS)
        return [
            f"{pad}def {name}(v, k):",
            f"{pad}    if k <= 0:",
            f"{pad}        return v",
            f"{pad}    if v > {free}:",
            f"{pad}        return {name}(np.tanh(v - 0.3), k - 1)",
            f"{pad}    return {name}(k=k - 2, v=np.tanh(v * 2 + {free})) if k < 4 else v * 0.5",
            f"{pad}{self.choose.choice(FLOATS)} = {name}({self.number(1)}, {self.whole()})",
        ]

    def write_for(self, depth: int, loops: int) -> list[str]:
        self.loops += 1
        bound = self.choose.choice(["3", "n", "m + 1", "n, 5", "4, 0, -1", "0, 6, n + 1", "2"])
        source = f"range({bound})" if self.choose.random() < 0.8 else "(1, 2, 3)"
        if "n + 1" in bound:
            source = "range(0, 6, 2)"
        index = f"i{self.loops}"
        body = self.block(depth + 1, loops + 1, 2)
        scale = f"{'    ' * (depth + 1)}z = np.tanh(z + {index} * 0.25)"
        return [f"{'    ' * depth}for {index} in {source}:", scale, *body]

    def write_while(self, depth: int, loops: int) -> list[str]:
        self.loops += 1
        pad, counter = "    " * depth, f"c{self.loops}"
        first = self.choose.choice(["0", "n * 0"])
        test = self.choose.choice([f"({self.test()}) and {counter} < 4", f"{counter} < 3", "True"])
        leave = [f"{pad}    if {counter} > 4:", f"{pad}        break"] if test == "True" else []
        body = self.block(depth + 1, loops + 1, 2)
        step = [f"{pad}    {counter} += 1"]
        return [f"{pad}{counter} = {first}", f"{pad}while {test}:", *step, *leave, *body]

    def write_break(self, depth: int, loops: int) -> list[str]:
        return [f"{'    ' * depth}if {self.test()}:", f"{'    ' * (depth + 1)}break"]

    def write_continue(self, depth: int, loops: int) -> list[str]:
        return [f"{'    ' * depth}if {self.test()}:", f"{'    ' * (depth + 1)}continue"]

    def write_return(self, depth: int, loops: int) -> list[str]:
        result = f"return {self.number(1)}, y, {self.number(1)}, {self.whole()}, n"
        return [f"{'    ' * depth}if {self.test()}:", f"{'    ' * (depth + 1)}{result}"]

    def number(self, depth: int) -> str:
        if depth == 0 or self.choose.random() < 0.2:
            return self.choose.choice([*FLOATS, "0.25", "-1.5", "1.0"])
        a, b = self.number(depth - 1), self.number(depth - 1)
        form = self.choose.choice(
            (
                *("np.tanh({a} + {b})", "({a} - {b} * 0.5)", "max({a}, {b})", "abs({a})"),
                *("({a} if {t} else {b})", "np.where({t}, {a}, {b})", "({a} * 0.5 + n)"),
            )
        )
        return f"np.tanh({form.format(a=a, b=b, t=self.test())})"

    def whole(self) -> str:
        return self.choose.choice([*INTS, "2", "5"])

    def test(self) -> str:
        a, b = self.choose.choice(FLOATS), self.choose.choice([*FLOATS, "0.1", "-0.3"])
        forms = [f"{a} > {b}", f"n > {self.whole()}", f"m == {self.whole()}", f"not {a} < {b}"]
        forms += [f"{a} > {b} and m < 4", f"{a} < {b} or n == 2", f"-0.5 < {a} < 0.8", "m < 3"]
        return self.choose.choice(forms)
