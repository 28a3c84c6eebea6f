from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from gapscope.base.samples import Samples
from gapscope.data.built_in import digits, two_circles


def test_digits_are_all_of_scikit_learns_each_once() -> None:
    problem = digits()
    assert (len(problem.train), len(problem.test), problem.input_shape) == (1297, 500, (1, 8, 8))
    both = torch.cat((problem.train.inputs, problem.test.inputs)).reshape(1797, 64) * 16
    pixels, _ = load_digits(return_X_y=True)
    original = torch.as_tensor(pixels, dtype=torch.float32)
    assert sorted(both.tolist()) == sorted(original.tolist())


def test_the_split_of_digits_is_stratified_and_always_the_same() -> None:
    problem = digits()
    assert problem.train.targets is not None and problem.test.targets is not None
    counts = torch.bincount(problem.train.targets) + torch.bincount(problem.test.targets)
    expected = counts * 500 / 1797
    assert ((torch.bincount(problem.test.targets) - expected).abs() < 1).all()
    assert problem.test.targets[:10].tolist() == [4, 8, 8, 3, 9, 0, 6, 3, 9, 8]
    assert problem.train.inputs.dtype == torch.float32
    assert float(problem.train.inputs.max()) == 1


def radii(samples: Samples, label: int) -> torch.Tensor:
    return samples.inputs[samples.targets == label].norm(dim=1)


def test_without_noise_the_circles_have_their_radii() -> None:
    problem = two_circles(n=101, factor=0.3, noise=0.0, test_size=40)
    assert (len(problem.train), len(problem.test)) == (101, 40)
    for samples in (problem.train, problem.test):
        assert torch.allclose(radii(samples, 0), torch.tensor(1.0))
        assert torch.allclose(radii(samples, 1), torch.tensor(0.3))


def test_the_best_classifier_is_right_as_often_as_the_density_says() -> None:
    problem = two_circles(test_size=40_000)
    # Likelihood of a point at distance r from the middle of N(0, s^2) around a circle of radius a, up to a factor:
    # exp(-(r^2 + a^2) / 2 s^2) I_0(r a / s^2).
    r = problem.test.inputs.double().norm(dim=1)
    log_outer, log_inner = (
        -(r**2 + a**2) / 0.08 + torch.log(torch.special.i0e(r * a / 0.04)) + r * a / 0.04 for a in (1.0, 0.5)
    )
    accuracy = ((log_inner > log_outer).long() == problem.test.targets).double().mean()
    assert abs(float(accuracy) - 0.890) < 0.006


def test_test_points_do_not_depend_on_the_number_of_training_points() -> None:
    few, many = two_circles(n=10), two_circles(n=50)
    assert torch.equal(few.test.inputs, many.test.inputs)
    assert not torch.equal(two_circles(seed=1).test.inputs, few.test.inputs)
    assert not torch.equal(two_circles(n=20, test_size=20).train.inputs, two_circles(n=20, test_size=20).test.inputs)
