"""`python -m newton_losses` is the command `newton-losses`."""

from .cli import main

if __name__ == "__main__":
    main()
