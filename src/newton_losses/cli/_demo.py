"""`newton-losses demo`."""


def demo() -> None:
    """Placeholder."""
