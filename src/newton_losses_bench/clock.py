"""The time that a run has taken, and what it is time for."""

import time

# How often a person who watches gets news.
NEWS_SECONDS = 0.5


class Clock:
    """The time that a run has taken, over all its processes, and what it is time for."""

    def __init__(self, checkpoint_seconds: float, earlier: float) -> None:
        self._earlier = earlier
        self._checkpoint_seconds = checkpoint_seconds
        self._start = self._saved = self._told = time.monotonic()

    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._start

    def saved(self) -> None:
        self._saved = time.monotonic()

    def is_time_to_save(self) -> bool:
        return time.monotonic() - self._saved >= self._checkpoint_seconds

    def is_time_for_news(self) -> bool:
        now = time.monotonic()
        if now - self._told < NEWS_SECONDS:
            return False
        self._told = now
        return True
