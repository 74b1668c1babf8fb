"""`python -m delian.cli` is the `delian` command."""

from .main import main

main()
