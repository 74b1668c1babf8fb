# The checks, each by itself; `just` lists them. They use .venv, or the environment in $VENV,
# with '.[sim,compile,dev]' installed (CONTRIBUTING.md).

export PATH := env("VENV", justfile_directory() / ".venv") / "bin:" + env("PATH")
export DELIAN_DATA := env("DELIAN_DATA", justfile_directory() / "../shared/data")

_list:
    @{{just_executable()}} --list --unsorted

# ruff: lint and format
lint:
    ruff check .
    ruff format --check .

# mypy --strict and the import contracts
types:
    #!/usr/bin/env bash
    set -euo pipefail
    # Both tools name the package after its folder.
    folder=$(mktemp -d) && trap 'rm -r "$folder"' EXIT
    ln -s "$PWD" "$folder/delian" && cache=$PWD/.mypy_cache && cd "$folder"
    mypy --config-file delian/pyproject.toml --cache-dir "$cache" -p delian.core \
        -p delian.device -p delian.edge -p delian.cloud -p delian.simulations -p delian.cli
    lint-imports --config delian/pyproject.toml --no-cache

# write the parts of documents and stubs that are generated from the code
generated:
    python tests/house/generated.py

# the rules of the repository; links and examples of the documentation
house *arguments:
    pytest -q tests/house {{arguments}}

# the documentation site, into build/site; a broken link fails
site:
    python docs/site/build.py

# pytest with these arguments; by default the tests of the README
test *arguments="-n 2":
    pytest {{arguments}}

# real daemons, brokers and processes; a failure is run once more, alone
system *folders:
    .ci/system {{folders}}

# many seeds, large fleets, long campaigns: no part of `all`, an hour
slow *folders:
    .ci/slow {{folders}}

# every decoder of outside bytes, for so many seconds each
fuzz seconds="3":
    python tests/fuzz/fuzz.py --all {{seconds}}

# all checks from a clean copy and a new environment
all:
    bash .ci/run
