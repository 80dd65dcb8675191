"""`python -m newton_losses_bench`, and the entry point of the command `newton-losses`."""

from .cli import main as main

if __name__ == "__main__":
    main()
