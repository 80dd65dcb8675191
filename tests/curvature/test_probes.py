"""The scale of a matrix that is known by its products, against that of the matrix itself."""

import pytest
import torch

from newton_losses.curvature import Products


def matrices(size):
    place = torch.arange(1, size + 1, dtype=torch.float64)
    for name, vector in {
        "ones": torch.ones_like(place),
        "alternating": (-1.0) ** place,
        "in pairs": torch.where(place % 4 < 2, 1.0, -torch.ones_like(place)),
        "smooth": torch.sin(place / 7),
    }.items():
        yield name, vector[:, None] * vector
    yield "kernel", torch.exp(-((place[:, None] - place) ** 2) / 50)
    yield "identity", torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 6, 16, 17, 64, 144, 1000])
def test_the_scale_of_matrices_with_a_pattern(size):
    for name, matrix in matrices(size):
        wanted = (matrix.square().sum() / size).sqrt()
        found = Products(lambda rows, matrix=matrix: rows @ matrix, size, matrix).mean_square().sqrt()
        # Of 16 probes of a matrix with one eigenvalue, the root of the mean square has a deviation of about a fifth.
        assert 0.5 <= found / wanted <= 1.6, (name, found / wanted)
        if size <= 16:
            torch.testing.assert_close(found, wanted)
