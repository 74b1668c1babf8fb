"""`python -m delian` is the `delian` command: where console scripts are not on the path."""

from .cli.main import main

if __name__ == "__main__":
    main()
