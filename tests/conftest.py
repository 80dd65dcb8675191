"""Settings for the whole suite."""

import torch

# Two test processes share two cores; more threads than that only fight.
torch.set_num_threads(1)
