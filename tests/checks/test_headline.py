"""Headlines of checks: none contradicts the account and the trials that are printed below it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import gapscope as gs
from gapscope.checks import CheckResult, Finding
from gapscope.checks.account import CAUSES, cap_costs, make_account, order_findings
from gapscope.checks.expected import Expected
from gapscope.checks.fixes import is_advised
from gapscope.checks.headline import SMALL
from gapscope.checks.registry import Fine
from gapscope.checks.trials import Trial, TriedAdvice

KINDS = {
    "The data limit": ("label errors", "too few samples", "class imbalance", "leak"),
    "The test samples differ": ("shift of test samples",),
    "The network itself limits": ("features of the network",),
    "The training run limits": ("training",),
}
CODES = ["GS101", "GS102", "GS103", "GS104", "GS105", "GS106", "GS110", "GS201", "GS203", "GS204"]
CODES += ["GS302", "GS303", "GS401", "GS402", "GS403", "GS404"]
FIXES = ["learning rate x 3", "drop flagged labels", "wider", "standardize inputs"]


def drawn_finding(code: str, draw: random.Random) -> Finding:
    cost = draw.choice([None, 0.0, 0.004, draw.random() / 2, draw.random() / 2])
    interval = None
    if code not in CAUSES:
        cost = None
    if cost is not None and draw.random() < 0.7:
        reach = draw.random() / 5
        interval = max(cost - reach, 0.0), cost + reach
    fixes = tuple(draw.sample(FIXES, draw.randrange(3)))
    return Finding("evidence", "act", code=code, cost=cost, interval=interval, fixes=fixes)


def drawn_trials(draw: random.Random) -> TriedAdvice | str:
    if draw.random() < 0.3:
        return "too few samples"
    names = draw.sample(FIXES, draw.randrange(1, 5))
    helps = draw.random() < 0.5
    gains = sorted((draw.random() / 2 for _ in names), reverse=True)
    trials = [Trial(name, gain) for name, gain in zip(names, gains, strict=True)]
    trials[0] = replace(trials[0], helps=helps)
    return TriedAdvice(tuple(trials), 0.5, 6.0)


def drawn_result(seed: int) -> CheckResult:
    """A result whose findings, expected accuracy and trials are drawn at random."""
    draw = random.Random(seed)
    value = draw.choice([0.3, 0.7, 0.995, draw.random()])
    low, high = max(value - 0.05, 0.0), min(value + 0.05, 1.0)
    expected = draw.choice([None, Expected(value, low, high, "on test samples")])
    codes = draw.sample(CODES, draw.randrange(1, 6))
    outcomes = cap_costs([drawn_finding(code, draw) for code in codes], expected)
    found = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    findings = order_findings(found, None, expected)
    result = CheckResult(
        findings=findings,
        fine=(Fine(code="GS109"),),
        not_checked=(),
        n_samples=60,
        total=60,
        task="classifier",
        seconds=1.0,
        account=make_account(0.5, expected, findings),
        # GS401 and GS402 judge it
        not_judged="" if {"GS401", "GS402"} & set(codes) else draw.choice(["", "the accuracy"]),
    )
    if draw.random() < 0.7:
        return result.with_tried(drawn_trials(draw), gs.TrainingSpec())
    return result


def contradictions(result: CheckResult) -> list[str]:
    """What a headline says against the account and the trials; costs below a point count as none."""
    assert result.account is not None
    headline = result.headline.removeprefix("Not certain: ")
    headline = headline[0].upper() + headline[1:]
    costs = {entry.name: entry.cost for entry in result.account.entries if entry.cost >= SMALL}
    most = max(costs.values(), default=0.0)
    found: list[str] = []
    for words, names in KINDS.items():
        if headline.startswith(words) and max(costs.get(name, 0.0) for name in names) < most:
            found.append("another cause costs more")
    # balanced accuracy is no accuracy
    if headline.startswith(("Nothing", "No limit", "Not judged")) and set(costs) - {
        "class imbalance"
    }:
        found.append("a cause costs more than a point")
    if "training was not judged" in headline and "training" in costs:
        found.append("training is in the account")
    best = result.tried.best if isinstance(result.tried, TriedAdvice) else None
    if best is None:
        return found
    if "no fix" in headline or headline.startswith("Nothing large"):
        found.append("a fix helps")
    helped = {finding.code for finding in result.findings if is_advised(best.name, finding.fixes)}
    largest = [entry for entry in result.account.entries if entry.cost == most]
    is_other = largest and not any(helped & set(entry.codes) for entry in largest)
    if is_other and best.first_gain > most and headline.startswith(tuple(KINDS)):
        found.append("a fix of another cause gains more")
    return found


def test_no_headline_contradicts_its_account() -> None:
    starts: set[str] = set()
    for seed in range(250):
        result = drawn_result(seed)
        assert not contradictions(result), (seed, result.headline, repr(result))
        starts.add(" ".join(result.headline.split()[:4]))
    assert len(starts) > 11  # of which most are named


def test_the_largest_cost_is_named_though_no_fix_of_it_helped() -> None:
    training = Finding("low", "tune", code="GS302", cost=0.7, fixes=("learning rate x 3",))
    features = Finding("worse", "compare", code="GS204", cost=0.2)
    result = replace(drawn_result(0), findings=(training, features), tried=None, not_judged="")
    assert result.headline == "The training run limits this classifier most."
    tried = TriedAdvice((Trial("learning rate x 3", 0.0),), 0.3, 6.0)
    refuted = result.with_tried(tried, gs.TrainingSpec())
    assert refuted.headline == (
        "Not certain: the training run limits this classifier most, but no fix that was tried helped."
    )
    helps = TriedAdvice((Trial("learning rate x 1000", 0.3, helps=True),), 0.3, 6.0)
    assert result.with_tried(helps, gs.TrainingSpec()).headline == result.headline
    assert not is_advised("learning rate / 3", training.fixes)
    other = replace(training, fixes=())
    assert replace(refuted, findings=(training, other)).headline == result.headline


@pytest.mark.parametrize(("gain", "named"), [(0.1, True), (0.3, False)])
def test_a_fix_that_gains_more_than_the_largest_cost_leaves_the_limit_open(
    gain: float, named: bool
) -> None:
    features = Finding("worse", "compare", code="GS204", cost=0.2)
    result = replace(drawn_result(0), findings=(features,), not_judged="")
    tried = TriedAdvice((Trial("learning rate x 3", gain, helps=True),), 0.3, 6.0)
    headline = result.with_tried(tried, gs.TrainingSpec()).headline
    assert ("the network itself limits" in headline) == named
    assert headline.endswith("helps: learning rate x 3.")
