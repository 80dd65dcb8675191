"""First and second derivatives: automatic against numerical, by hand against automatic, at ties too."""

import pytest
import torch
from sorting_cases import DISTRIBUTIONS, NAMES, SIZES, make, scores_and_values

from newton_losses.sorting import SortingLoss
from newton_losses.sorting._network_distributions import DISTRIBUTIONS as LAWS

# torch's own forward-mode machinery warns about itself when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_second_gradients_of_the_loss(name, n):
    scores, values = scores_and_values(1, n, seed=n)
    loss = SortingLoss(make(name, 1.5))
    leaf = scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, values), leaf, check_forward_ad=True, fast_mode=n > 3)
    assert torch.autograd.gradgradcheck(lambda s: loss(s, values), leaf, fast_mode=n > 3)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_second_gradients_of_the_matrices(name, n):
    leaf = scores_and_values(1, n, seed=n)[0].requires_grad_()
    relaxation = make(name, 1.5)
    for function in (relaxation.matrix, relaxation.log_matrix):
        assert torch.autograd.gradcheck(function, leaf, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, leaf, fast_mode=True)


def automatic(loss, scores, values):
    """Gradients and Hessians of each sample, through the recorded operators."""

    def single(score, value):
        return loss(score.unsqueeze(0), value.unsqueeze(0)).squeeze(0)

    gradient = torch.func.vmap(torch.func.grad(single))(scores, values)
    return gradient, torch.func.vmap(torch.func.hessian(single))(scores, values)


@pytest.mark.parametrize("ties", ["share", "mask"])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_expansion_equals_automatic_differentiation(name, n, ties):
    scores, values = scores_and_values(4, n, seed=n)
    if n > 2:
        scores[0, 1] = scores[0, 0]
        scores[1] = 0.3
        values[2, 1] = values[2, 0]
    loss = SortingLoss(make(name, 2.0), ties=ties)
    gradient, hessians = automatic(loss, scores, values)
    expansion = loss.expand(scores, values, curvature="hessian")
    torch.testing.assert_close(expansion.value, loss(scores, values))
    torch.testing.assert_close(expansion.gradient, gradient)
    torch.testing.assert_close(expansion.curvature.dense(), hessians.mean(0))
    fisher = loss.expand(scores, values, curvature="fisher").curvature.dense()
    torch.testing.assert_close(fisher, gradient.mT @ gradient / 4)
    assert loss.expand(scores, values, curvature=None).curvature is None


@pytest.mark.parametrize("network", ["odd_even", "bitonic"])
def test_expansion_of_both_wirings(network):
    scores, values = scores_and_values(3, 8)
    loss = SortingLoss(make("cauchy", 3.0, network, n=8))
    torch.testing.assert_close(
        loss.expand(scores, values, curvature="hessian").curvature.dense(),
        automatic(loss, scores, values)[1].mean(0),
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_derivatives_of_the_distributions(name):
    law = LAWS[name]
    u = torch.tensor([-1e9, -1e4, -21.0, -19.0, -3.0, -0.2, 0.0, 0.1, 0.7, 5.0, 30.0, 1e5], dtype=torch.float64)
    leaf = u.clone().requires_grad_()
    (first,) = torch.autograd.grad(law.log_cdf(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    # The automatic second derivative of log erfc subtracts numbers of size u².
    torch.testing.assert_close(law.log_slope(u), first.detach(), rtol=1e-9, atol=1e-300)
    torch.testing.assert_close(law.log_bend(u), second, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(law.log_cdf(u).exp() + law.log_cdf(-u).exp(), torch.ones_like(u))
    # The series for log Φ ends before 10395/u¹², 2.5e-12 where it begins to be used, at −20.
    torch.testing.assert_close(law.cdf(u), law.log_cdf(u).exp(), rtol=3e-12, atol=0)
    d = torch.tensor([-2.0, -1e-7, 1e-11, 0.5], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(law.argument(d, 3.0).sum(), d, create_graph=True)
    torch.testing.assert_close(law.argument_derivatives(d, 3.0)[0], first)
    if name == "logistic_phi":
        (second,) = torch.autograd.grad(first.sum(), d)
        torch.testing.assert_close(law.argument_derivatives(d, 3.0)[1], second)


def test_gaussian_against_an_independent_logarithm():
    u = torch.linspace(-200, 8, 2001, dtype=torch.float64)
    torch.testing.assert_close(LAWS["gaussian"].log_cdf(u), torch.special.log_ndtr(u), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", NAMES)
def test_equal_scores_have_gradients_that_do_not_know_the_items_places(name):
    values = torch.tensor([[2.0, 0.0, 3.0, 1.0]])
    loss = SortingLoss(make(name))
    order = torch.tensor([3, 1, 0, 2])
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    gradient = loss.expand(zeros, values, curvature=None).gradient
    permuted = loss.expand(zeros, values[:, order], curvature=None).gradient
    if name in ("neuralsort", "softsort", "softsort-2"):
        torch.testing.assert_close(permuted, gradient[:, order])
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["neuralsort", "softsort", "logistic"])
def test_a_bad_sample_stays_alone(name):
    scores, values = scores_and_values(5, 4)
    loss = SortingLoss(make(name))
    keep = [0, 2, 4]
    expected = loss.expand(scores[keep], values[keep], curvature="hessian")
    scores[1, 2] = torch.nan
    scores[3, 0] = torch.inf
    for curvature in ("hessian", "fisher"):
        expansion = loss.expand(scores, values, curvature=curvature)
        alone = loss.expand(scores[keep], values[keep], curvature=curvature)
        torch.testing.assert_close(expansion.curvature.dense(), alone.curvature.dense())
        assert expansion.gradient[[1, 3]].isnan().all()
        torch.testing.assert_close(expansion.gradient[keep], expected.gradient)
        assert expansion.value.isnan().tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("name", ["neuralsort", "softsort-2", "logistic", "cauchy"])
def test_expansion_records_no_graph(name):
    scores, values = scores_and_values(3, 4)
    expansion = SortingLoss(make(name)).expand(scores.requires_grad_(), values, curvature="hessian")
    assert not expansion.value.requires_grad
    assert not expansion.gradient.requires_grad
    assert not expansion.curvature.dense().requires_grad


@pytest.mark.parametrize("name", ["neuralsort", "softsort", "logistic", "gaussian"])
def test_reference_numerics_expand_by_automatic_differentiation(name):
    scores, values = scores_and_values(4, 5)
    # Close scores keep P(1−P) far above 1e-12, where torch's cross-entropy begins to cut its derivatives.
    scores = scores / 5
    stable, reference = (SortingLoss(make(name), numerics=numerics) for numerics in ("stable", "reference"))
    for curvature in ("hessian", "fisher", None):
        ours, theirs = (loss.expand(scores, values, curvature=curvature) for loss in (stable, reference))
        torch.testing.assert_close(ours.value, theirs.value)
        torch.testing.assert_close(ours.gradient, theirs.gradient)
        if curvature is not None:
            found, expected = (expansion.curvature.dense() for expansion in (ours, theirs))
            torch.testing.assert_close(found, expected, check_dtype=False)
