"""The pages of the documentation site: those of docs/, and others that are made of the checkout.

Pages are read in the checkout too, so their links are plain paths. Here a link to a file outside
docs/ becomes a link to a page: README.md and its like are pages under `project/`, other files
pages of source under `source/`. Notebooks are shown as pages. The Python reference is made from the
lists of public names and from docstrings, which are read and never run.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2[`~]*$", re.MULTILINE | re.DOTALL)
#: Of a source page, by the suffix of its file.
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".service": "ini"}

#: The public names of `delian` by what they are for. tests/house compares them with `__all__`.
FACE = {
    "Federations": "simulate Run load Predictor stats data device learn DelianError",
    "Models of other frameworks": "from_torch from_onnx to_onnx read_safetensors "
    "write_safetensors quantise quantise_weight QuantisedWeight",
    "Adapters": "lora dora ia3 adapters",
    "The compiler": "compile module static static_field Static Tensor trace debug",
    "Derivatives": "grad value_and_grad jvp vjp linearize hvp hessian jacfwd jacrev vmap "
    "checkpoint custom_vjp",
    "Numbers and trees": "bfloat16 mixed_precision loss_scale all_finite random tree",
}
#: Packages with pages of their own, whose names are listed in `_NAMES` of their `__init__.py`.
PACKAGES = {
    "nn": ("core/learning/nn", "Layers, losses and optimizers; [a table of them](../nn.md)."),
    "ops": ("core/compiler/ops", "What NumPy lacks for learning; [a table](../nn.md)."),
}


def pages() -> dict[str, str]:
    """Every page of the site, as Markdown, by its path: `tutorials/fleet.md`."""
    texts = {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(DOCS.rglob("*.md"))
    }
    texts.update(reference_pages())
    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        texts[f"notebooks/{notebook.stem}.md"] = notebook_page(notebook)
    pending = {Path("README.md")}
    pending |= {found for uri, text in texts.items() for found in outside(f"docs/{uri}", text)}
    seen: set[Path] = set()
    while pending - seen:
        path = min(pending - seen)
        seen.add(path)
        texts[site_uri(path)] = page_of(path)
        if path.suffix == ".md":
            pending |= set(outside(path.as_posix(), texts[site_uri(path)]))
    return {uri: moved_links(uri, text) for uri, text in texts.items()}


def moved_links(uri: str, text: str) -> str:
    """Links of the checkout as links of the site."""
    here = repository_path(uri)

    def moved(match: re.Match[str]) -> str:
        path = resolved(here, match[1])
        if path is None:
            return match[0]
        to = posixpath.relpath(site_uri(path), posixpath.dirname(uri) or ".")
        return to + (match[2] or "")

    return "".join(part if fenced else LINK.sub(moved, part) for fenced, part in parts_of(text))


def parts_of(text: str) -> Iterator[tuple[bool, str]]:
    """The text in parts, with whether each is a block of code."""
    end = 0
    for block in FENCED.finditer(text):
        yield False, text[end : block.start()]
        yield True, block[0]
        end = block.end()
    yield False, text[end:]


def outside(here: str, text: str) -> Iterator[Path]:
    """The files outside docs/ that a page links to."""
    for fenced, part in parts_of(text):
        for match in () if fenced else LINK.finditer(part):
            path = resolved(here, match[1])
            if path is not None and path.parts[0] != "docs" and (ROOT / path).is_file():
                yield path


def resolved(here: str, target: str) -> Path | None:
    """The file of the checkout that a link leads to; None for a link to another host."""
    if re.match(r"[a-z]+:|/", target):
        return None
    return Path(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))


def site_uri(path: Path) -> str:
    """Where a file of the checkout is on the site, as a path of its source."""
    if path.parts[0] == "docs":
        uri = path.relative_to("docs").as_posix()
        return re.sub(r"\.ipynb$", ".md", uri)
    if path.suffix == ".md":
        return f"project/{path.stem.lower()}.md"
    return f"source/{path.as_posix()}.md"


def repository_path(uri: str) -> str:
    """The file of the checkout that a page was made from; the inverse of `site_uri`."""
    folder, _, rest = uri.partition("/")
    if folder == "project":
        return f"{Path(rest).stem.upper()}.md"
    return rest.removesuffix(".md") if folder == "source" else f"docs/{uri}"


def page_of(path: Path) -> str:
    """A page with a file of the checkout."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path.as_posix()}\n\n````{language}\n{text.rstrip()}\n````\n"


def notebook_page(path: Path) -> str:
    """A notebook's cells as Markdown, the name of its file after the heading."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = []
    for cell in cells:
        source = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        texts.append(f"```python\n{source}\n```" if code else source)
    texts.insert(1, f"This page is the notebook `docs/notebooks/{path.name}` of the checkout.")
    return "\n\n".join(texts) + "\n"


def reference_pages() -> dict[str, str]:
    """The Python reference: a heading for each public name."""
    pages = {"api/delian.md": face_page()}
    for name, (folder, lead) in PACKAGES.items():
        lines = [f"# delian.{name}", "", lead, ""]
        for module, names in names_of(ROOT / folder / "__init__.py").items():
            lines += [f"## {module.strip('.').replace('_', ' ').capitalize()}", ""]
            for one in names.split() or [module]:
                lines += [f"::: delian.{name}.{one}", ""]
        pages[f"api/{name}.md"] = "\n".join(lines)
    return pages


def face_page() -> str:
    """The names of `delian` itself."""
    lines = ["# delian", "", "`import delian as dl` has these names. Layers and optimizers are in"]
    lines += ["[delian.nn](nn.md), functions that NumPy lacks in [delian.ops](ops.md).", ""]
    for section, names in FACE.items():
        lines += [f"## {section}", ""]
        for name in names.split():
            lines += [f"::: delian.{name}", ""]
    return "\n".join(lines)


def names_of(module: Path) -> dict[str, str]:
    """The table `_NAMES` of a package: its modules, with the names that it exports of each."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{os.fspath(module)} has no _NAMES")
