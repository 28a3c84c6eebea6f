"""The exact paired test against SciPy, its promised rate of false alarms by simulation, and its power."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest

from gapscope.base.errors import InvalidInput
from gapscope_studies.overfitting_alarm.held_out_sign_test import HeldOutSignTest, sign_test


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (3, 1), (12, 5), (40, 70), (300, 250)])
def test_the_test_against_scipy(worse: int, better: int) -> None:
    expected = binomtest(worse, worse + better, alternative="greater").pvalue if worse + better else 1.0
    assert sign_test(worse, better) == pytest.approx(expected)


def run(errors: list[torch.Tensor], **settings: float) -> HeldOutSignTest:
    alarm = HeldOutSignTest(**settings)  # type: ignore[arg-type]
    for epoch, row in enumerate(errors, start=1):
        alarm.update(row, epoch)
    return alarm


def test_false_alarms_of_a_whole_training_are_as_rare_as_promised() -> None:
    generator = torch.Generator().manual_seed(0)
    raised = 0
    for _ in range(200):
        hard = torch.rand(200, generator=generator)  # samples differ, observations do not
        errors = [(torch.rand(200, generator=generator) < 0.6 * hard).double() for _ in range(6)]
        raised += run(errors, looks=6, level=0.2).raised
    assert 0 < raised / 200 <= 0.2


@pytest.mark.parametrize("fall", [0.0, 0.06])
def test_the_power_is_the_one_it_was_planned_for(fall: float) -> None:
    alarm = HeldOutSignTest(looks=2)
    m = alarm.samples_needed(0.06, discordant=0.1, power=0.8)
    generator, raised = torch.Generator().manual_seed(1), 0
    for _ in range(200):
        u = torch.rand(m, generator=generator)
        # worse with probability (.1 + fall) / 2, better with (.1 - fall) / 2
        change = (u < 0.05 + fall / 2).double() - (u > 0.95 + fall / 2).double()
        raised += run([torch.ones(m), 1 + change], looks=2).raised
    assert (0.72 < raised / 200 < 0.9) if fall else raised / 200 <= 0.08


def test_how_many_samples_are_needed() -> None:
    # one pair at level .05: (1.645 sqrt .1 + .842 sqrt .0984)^2 / .0016
    assert HeldOutSignTest(looks=2).samples_needed() == pytest.approx(384, abs=2)
    assert HeldOutSignTest(looks=10).samples_needed() > 900


def test_looks_beyond_the_plan_say_nothing() -> None:
    right, wrong = torch.zeros(50), torch.ones(50)
    assert run([right, right, right, wrong], looks=3).raised_at is None
    found = run([right, right, wrong, right], looks=4)
    assert (found.raised_at, found.peak) == (3, 1)


def test_squared_errors_count_by_sign() -> None:
    before = torch.linspace(0.1, 1, 40)
    numbers = HeldOutSignTest(looks=2)
    numbers.update(before, 1)
    after = before + torch.where(torch.arange(40) < 30, 0.01, -5.0)
    assert numbers.update(after, 2)["alarm.p_value"] == pytest.approx(binomtest(30, 40, alternative="greater").pvalue)


def test_too_few_samples_for_any_alarm_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"needs 10 kept-out samples or more for 10 looks at level 0\.05; got 9"):
        HeldOutSignTest().update(torch.zeros(9), 1)
