"""`python -m afield` is the command `afield`."""

from afield.app.cli import main

if __name__ == "__main__":
    main()
