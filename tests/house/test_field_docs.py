"""A field is documented at the field, never in a paragraph of its class's docstring.

Read are dataclasses and NamedTuples. The summary, a docstring's first line, may name fields: one
sentence can be all that a small class needs. Nothing below it may name two fields or more that have
no docstring of their own, nor may the docstring of another field.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "cloud", "core", "device", "edge", "simulations")


def wrong_in(package: str) -> list[str]:
    """Classes of a package that a paragraph documents, with the fields that it names."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {', '.join(names)}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and has_fields(node) and (names := named_elsewhere(node))
    ]


def text_of(node: ast.stmt | None) -> str | None:
    """The text of a statement that is a text alone."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None


def has_fields(node: ast.ClassDef) -> bool:
    made = [ast.unparse(d) for d in node.decorator_list]
    bases = [ast.unparse(b) for b in node.bases]
    return any("dataclass" in d for d in made) or any("NamedTuple" in b for b in bases)


def fields_of(node: ast.ClassDef) -> dict[str, str | None]:
    """Each field's docstring; None: it has none."""
    following = [*node.body[1:], None]
    return {
        statement.target.id: text_of(after)
        for statement, after in zip(node.body, following, strict=True)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def named_elsewhere(node: ast.ClassDef) -> list[str]:
    """Fields without a docstring that a text about several of them names."""
    fields = fields_of(node)
    bare = [name for name, text in fields.items() if text is None]
    below = (ast.get_docstring(node) or "").partition("\n")[2]
    found = [name for name in bare if re.search(rf"\b{name}\b", below)]
    if len(found) > 1:
        return found
    for text in filter(None, fields.values()):
        found = [name for name in bare if f"`{name}`" in text]
        if len(found) > 1 or text.startswith(tuple(f"With `{name}`" for name in found)):
            return found
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_fields_are_documented_one_by_one(package):
    found = wrong_in(package)
    assert not found, "write a docstring under each field: " + "; ".join(found)


EXAMPLE = '''
@dataclass
class Pair:
    """Two numbers.

    {about}
    """

    one: int
    """{one}"""
    other: int
    another: int
'''


def names_in(about: str = "What it is for.", one: str = "The first.") -> list[str]:
    return named_elsewhere(ast.parse(EXAMPLE.format(about=about, one=one)).body[0])


def test_a_paragraph_of_fields_is_found_where_it_is():
    assert names_in(about="other: the second. another: the third.") == ["other", "another"]
    assert names_in(one="The first, as `other` and `another` are.") == ["other", "another"]
    assert names_in(one="With `other`: the numbers.") == ["other"]
    assert names_in(about="Of one and other, one has a docstring.") == []
    assert names_in(one="The first; `other` is the second.") == []
    assert names_in() == []
