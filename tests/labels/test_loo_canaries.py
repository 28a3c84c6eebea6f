"""Canaries in the closed form: the same as changing labels and refitting without each sample."""

from __future__ import annotations

import torch

from gapscope.base.random_streams import make_generator
from gapscope.labels.noise_rate import MIN_CANARIES, ROUNDS, canary_margins, confusion_odds
from gapscope.statistics.kernel_ridge import spectrum


def test_odds_follow_the_confusions() -> None:
    predicted, labels = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 2, 2, 1])
    assert confusion_odds(predicted, labels, 3).tolist() == [[0, 0.1, 2.1], [0.1, 0, 0.1], [0.1, 0.1, 0]]


def test_margins_are_those_of_refits() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(30, 4, generator=generator, dtype=torch.float64), torch.arange(30) % 3
    kernel = spectrum(features @ features.T)
    found = canary_margins(kernel, labels, labels, 0.1, 3, make_generator(0, "canaries"))
    assert found.canaries.shape == (ROUNDS, MIN_CANARIES) and found.ordinary.shape == (ROUNDS, 30 - MIN_CANARIES)
    # the first round again, with one refit a sample
    draws = make_generator(0, "canaries")
    chosen = torch.randperm(30, generator=draws)[:MIN_CANARIES]
    changed = labels.clone()
    changed[chosen] = torch.multinomial(confusion_odds(labels, labels, 3)[labels[chosen]], 1, generator=draws)[:, 0]
    ridge, targets = 0.1 * kernel.mean, torch.nn.functional.one_hot(changed, 3).double()
    for place, sample in enumerate(chosen.tolist()):
        rest = torch.tensor([i for i in range(30) if i != sample])
        # the intercept is free: centring features and targets of the rest takes it out
        centre, mean = features[rest].mean(0), targets[rest].mean(0)
        x = features[rest] - centre
        weights = torch.linalg.solve(x.T @ x + ridge * torch.eye(4), x.T @ (targets[rest] - mean))
        prediction = (features[sample] - centre) @ weights + mean
        others = prediction[torch.arange(3) != changed[sample]].max()
        assert torch.isclose(found.canaries[0, place], prediction[changed[sample]] - others, atol=1e-9)


def test_a_canary_never_keeps_its_label() -> None:
    assert (confusion_odds(torch.arange(9) % 3, torch.arange(9) % 3, 3).diagonal() == 0).all()
