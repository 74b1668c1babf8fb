"""`python -m delian` is the `delian` command: for who has no console scripts on the path."""

from .cli.main import main

if __name__ == "__main__":
    main()
