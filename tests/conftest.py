"""Settings for the whole suite."""

import pytest
import torch

from triton_interpreter import INTERPRETED

# Two test processes share two cores; more threads than that only fight.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some tests are slow and need a GPU: `-m slow` selects them where there is none, too."""
    if not torch.cuda.is_available() and not INTERPRETED:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
