"""The matrices: equal to the peers' and the textbook's, stochastic, sorting in the limit."""

import numpy as np
import pytest
import torch
from sorting_cases import DISTRIBUTIONS, NAMES, SIZES, make, scores_and_values

from newton_losses.errors import ArgumentError, ShapeError
from newton_losses.sorting import NeuralSort, SoftSort, SortingNetwork, neuralsort, softsort

diffsort = pytest.importorskip("diffsort")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("network", "n"), [("odd_even", n) for n in (*SIZES, 7)] + [("bitonic", 4), ("bitonic", 16)])
def test_networks_equal_diffsort(distribution, network, n):
    scores, _ = scores_and_values(20, n)
    peer = diffsort.DiffSortNet(network, n, steepness=4.0, distribution=distribution)
    # The peer returns the transpose: sorted = x @ P. Its "optimal" adds 1e-10 to |v|, hence not 1e-12.
    expected = peer(scores)[1].mT
    ours = SortingNetwork(n, network, distribution, 4.0)
    torch.testing.assert_close(ours.matrix(scores), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.probabilities(scores), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.log_matrix(scores).exp(), expected, rtol=0, atol=1e-6)


def textbook_neuralsort(scores, temperature):
    n = scores.shape[-1]
    distances = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)
    scaling = (n + 1 - 2 * torch.arange(1, n + 1, dtype=scores.dtype)).unsqueeze(-1)
    return ((scaling * scores.unsqueeze(-2) - distances.unsqueeze(-2)) / temperature).softmax(-1)


@pytest.mark.parametrize("n", [1, *SIZES])
def test_softmax_relaxations_equal_the_textbook_in_descending_order(n):
    scores, _ = scores_and_values(20, n)
    scores[0, 0] = scores[0, -1]
    torch.testing.assert_close(neuralsort(scores, 0.7, descending=True), textbook_neuralsort(scores, 0.7))
    ordered = scores.sort(-1, descending=True).values
    difference = (ordered.unsqueeze(-1) - scores.unsqueeze(-2)).abs()
    torch.testing.assert_close(softsort(scores, 0.3, descending=True), (-difference / 0.3).softmax(-1))
    torch.testing.assert_close(softsort(scores, 0.3, p=2, descending=True), (-difference.square() / 0.3).softmax(-1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_rows_sum_to_one_and_a_networks_columns_too(name, n):
    scores, _ = scores_and_values(9, n)
    matrix = make(name, 3.0).matrix(scores)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(9, n, dtype=torch.float64))
    if name in DISTRIBUTIONS:
        torch.testing.assert_close(matrix.sum(-2), torch.ones(9, n, dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_the_sharp_limit_is_the_hard_permutation(name):
    scores, _ = scores_and_values(9, 6)
    hard = torch.nn.functional.one_hot(scores.argsort(-1), 6).double()
    # Heavy tails end slowly: a comparison is wrong by about 1/(πβd).
    torch.testing.assert_close(make(name, 1e9).matrix(scores), hard, rtol=0, atol=1e-5)
    torch.testing.assert_close(make(name, 1e9).matrix(scores, descending=True), hard.flip(-2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_any_leading_shape_and_dim(name):
    scores, _ = scores_and_values(6, 4)
    relaxation = make(name)
    expected = relaxation.matrix(scores).reshape(2, 3, 4, 4)
    torch.testing.assert_close(relaxation.matrix(scores.reshape(2, 3, 4)), expected)
    torch.testing.assert_close(relaxation.matrix(scores.reshape(2, 3, 4).movedim(-1, 0), dim=0), expected)
    torch.testing.assert_close(relaxation.matrix(scores[0]), expected[0, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    scores = scores_and_values(6, 4)[0].to(dtype)
    relaxation = make(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        matrix = relaxation.matrix(scores)
    assert matrix.dtype == torch.float32
    torch.testing.assert_close(matrix, relaxation.matrix(scores.float()))


def test_log_matrix_is_finite_where_the_matrix_underflows():
    scores = torch.tensor([0.0, 1e6, -1e6])
    for name in NAMES:
        assert make(name, 1000.0).log_matrix(scores).isfinite().all(), name


def test_wiring_lives_in_buffers_that_are_not_saved():
    network = SortingNetwork(5)
    assert {name for name, _ in network.named_buffers()} == {"partners", "signs"}
    assert not network.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name):
    scores, _ = scores_and_values(6, 4)
    relaxation = make(name, n=4)
    torch.testing.assert_close(torch.func.vmap(relaxation.matrix)(scores), relaxation.matrix(scores))


def test_both_functions_take_their_arguments_in_one_order():
    """The third of softsort was p."""
    scores, _ = scores_and_values(6, 4)
    for function in (neuralsort, softsort):
        by_name = function(scores, temperature=0.3, dim=0, descending=True, log=True)
        assert torch.equal(function(scores, 0.3, 0, True, True), by_name)


def test_errors_teach():
    with pytest.raises(ArgumentError, match="power of two"):
        SortingNetwork(6, "bitonic")
    with pytest.raises(ArgumentError, match="'cauchy'"):
        SortingNetwork(6, distribution="cauchi")
    with pytest.raises(ArgumentError, match="odd_even"):
        SortingNetwork(6, "bubble")
    with pytest.raises(ArgumentError, match="at least 1"):
        SortingNetwork(0)
    with pytest.raises(ShapeError, match="n=None"):
        SortingNetwork(6).matrix(torch.zeros(3, 5))
    with pytest.raises(ArgumentError, match="temperature"):
        NeuralSort(0.0)
    with pytest.raises(ArgumentError, match="Choose 1 or 2"):
        SoftSort(p=3)
    for p in (0, True, 1.5, np.ones(2)):
        with pytest.raises(ArgumentError, match=r"p is .* at least 1"):
            SoftSort(p=p)
    assert type(SoftSort(p=np.int64(2)).p) is int
    with pytest.raises(ArgumentError, match="floating-point"):
        neuralsort(torch.tensor([1, 2]))
    with pytest.raises(ShapeError, match="dim=2"):
        neuralsort(torch.zeros(2, 3), dim=2)
    with pytest.raises(ShapeError, match="no items"):
        neuralsort(torch.zeros(2, 0))
    with pytest.raises(ShapeError, match="no dimension"):
        neuralsort(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("network", "n"), [*(("odd_even", n) for n in range(1, 8)), *(("bitonic", 2**k) for k in range(5))]
)
def test_derivatives_are_those_that_a_compiler_is_given(network, n, monkeypatch):
    scores = torch.randn(4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    target = torch.eye(n, dtype=torch.float64).expand(4, n, n)
    relaxation = SortingNetwork(n, network, backend="torch")
    plain = relaxation.derivatives(scores, target, torch.ones_like(target), True)
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        for once, again in zip(
            plain, relaxation.derivatives(scores, target, torch.ones_like(target), True), strict=True
        ):
            # To the rounding of float64: a compiler is given sums in the place of small products.
            torch.testing.assert_close(once, again, rtol=1e-13, atol=1e-13 * float(once.abs().max()))
