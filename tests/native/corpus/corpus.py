"""Fetches, chooses and judges the corpus.

    python tests/native/corpus/corpus.py fetch FOLDER [--mirrors MIRRORS]
    python tests/native/corpus/corpus.py choose FOLDER
    python tests/native/corpus/corpus.py judge FOLDER [--only TEXT] [--native] [--gradients]

Each takes `--corpus held_out` too: the programs that the language was not developed against.
`fetch` takes the files of each repository at its commit, from GitHub or from bare repositories
`MIRRORS/owner+name/repo`. `choose` writes the manifest: what it takes is told in programs.py.
`judge` prints a line for each program, and the counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import judge
import programs


def sources(corpus: str) -> list[tuple[str, str, list[tuple[str, str, list[str]]]]]:
    """(repository, commit, [(driver, root, globs)]) of each repository in sources.txt."""
    out: list[tuple[str, str, list[tuple[str, str, list[str]]]]] = []
    for line in (programs.HERE / corpus / "sources.txt").read_text().splitlines():
        if line.startswith("    "):
            driver, root, *globs = line.split()
            out[-1][2].append((driver, root, globs))
        elif line and not line.startswith("#"):
            repository, commit = line.split()
            out.append((repository, commit, []))
    return out


def _git(*words: str) -> None:
    subprocess.run(["git", *words], check=True, stdout=subprocess.DEVNULL, timeout=900)


def fetch(corpus: str, folder: Path, mirrors: Path | None) -> None:
    """Writes the text files of each repository under FOLDER/owner__name."""
    for repository, commit, _ in sources(corpus):
        out = folder / repository.replace("/", "__")
        if out.is_dir():
            continue
        with tempfile.TemporaryDirectory() as made:
            if mirrors is not None:
                git = str(mirrors / repository.replace("/", "+") / "repo")
            else:
                git = made
                _git("init", "-q", "--bare", git)
                where = f"https://github.com/{repository}"
                _git(f"--git-dir={git}", "fetch", "-q", "--depth", "1", where, commit)
            _write(git, commit, out)
        print(repository, commit)


def _write(git: str, commit: str, out: Path) -> None:
    listed = subprocess.run(
        ["git", f"--git-dir={git}", "ls-tree", "-r", "-z", "--name-only", commit],
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name.endswith((".py", ".json", ".wav")):
            shown = subprocess.run(
                ["git", f"--git-dir={git}", "cat-file", "blob", f"{commit}:{name}"],
                capture_output=True,
            )
            if shown.returncode == 0:  # A snapshot may lack its largest files.
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_bytes(shown.stdout)


def _others(corpus: str, folder: Path) -> set[str]:
    """The texts of the functions of the corpora before this one."""
    before = programs.CORPORA[: programs.CORPORA.index(corpus)]
    files = [f for c in before for f in programs.manifest(c)]
    return {text for f in files for text in programs.texts(f, folder)}


def choose(corpus: str, folder: Path) -> None:
    """Writes manifest.json."""
    seen = _others(corpus, folder)
    written = []
    for repository, commit, groups in sources(corpus):
        files = []
        top = folder / repository.replace("/", "__")
        for driver, root, globs in groups:
            for path in dict.fromkeys(p for g in globs for p in sorted(top.glob(g))):
                text = path.read_text()
                if "numpy" not in text or path.name.startswith(("test_", "__init__")):
                    continue
                name = str(path.relative_to(top))
                file = programs.File(repository, commit, name, root, driver)
                found = judge.in_a_process("choose", file, folder, sorted(seen))
                seen |= set(found["texts"])
                if found["functions"]:
                    kept = {"path": name, "root": root, "driver": driver}
                    hashed = {"sha256": programs.sha256(path), "functions": found["functions"]}
                    files.append({**kept, **hashed})
        count = sum(len(f["functions"]) for f in files)
        print(repository, count, flush=True)
        written.append({"repository": repository, "commit": commit, "files": files})
    (programs.HERE / corpus / "manifest.json").write_text(json.dumps(written, indent=1) + "\n")


def judged(corpus: str, folder: Path, only: str, **how: Any) -> list[dict[str, Any]]:
    """What became of each program."""
    out = []
    for file in programs.manifest(corpus):
        if only in f"{file.repository}/{file.path}":
            assert programs.sha256(file.place(folder)) == file.sha256, file.path
            found = judge.in_a_process("judge", file, folder, how)
            for line in found["programs"]:
                print(judge.line(line), flush=True)
            out += found["programs"]
    return out


def _repositories(corpus: str) -> list[str]:
    """The folders of a corpus's repositories."""
    return [repository.replace("/", "__") for repository, *_ in sources(corpus)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["fetch", "choose", "judge"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", choices=programs.CORPORA, default=programs.CORPORA[0])
    parser.add_argument("--mirrors", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.folder.exists() and not given.folder.is_dir():
        parser.error(f"{given.folder} is no folder")
    read = {"fetch": [], "choose": programs.CORPORA, "judge": [given.corpus]}[given.verb]
    for corpus in read:
        if missing := [n for n in _repositories(corpus) if not (given.folder / n).is_dir()]:
            parser.error(f"{given.folder} lacks {missing[0]}: fetch --corpus {corpus} first")
    if given.verb == "fetch":
        fetch(given.corpus, given.folder, given.mirrors)
    elif given.verb == "choose":
        choose(given.corpus, given.folder)
    else:
        how = {"native": given.native, "gradients": given.gradients}
        found = judged(given.corpus, given.folder, given.only, **how)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
        print(judge.summary(found))


if __name__ == "__main__":
    main()
