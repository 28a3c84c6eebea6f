"""The account of the accuracy: where the points between 100 % and the expected accuracy go; R^2 of regression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapscope.checks.registry import Finding, Fine, Outcome, list_checks
from gapscope.results.answer import is_accuracy
from gapscope.results.estimate import IntervalEstimate, percent

if TYPE_CHECKING:
    from gapscope.checks.expected import Expected

# Findings with one cause have one cost, the largest of theirs; of those about training the specific ones stand first.
CAUSES = {
    "GS102": "label errors",
    "GS103": "too few samples",
    "GS104": "class imbalance",
    "GS107": "leak",
    "GS110": "shift of test samples",
    "GS204": "features of the network",
    "GS303": "training",
    "GS203": "training",
    "GS105": "training",
    "GS201": "training",
    "GS202": "training",
    "GS302": "training",
    "GS403": "training",
    "GS401": "training",
}


def cause_of(finding: Finding) -> str:
    """Return the name of a finding's cost in the account; empty if it has none."""
    return finding.cause or CAUSES.get(finding.code, "")


def limit_of(finding: Finding) -> str:
    """Return what a finding says limits a network, a key of `gapscope.checks.headline.LIMITS`.

    That of its cost in the account, so that a headline and the account agree; else that of the group of its check.
    """
    # it sees that the data allow more, not why
    if finding.code == "GS401":
        return "configuration"
    if CAUSES.get(finding.code) == "training":
        return "training"
    named = {"GS110": "shift", "GS402": "overfitting", "GS404": "noise"}
    if finding.code in named:
        return named[finding.code]
    return {"1": "data", "2": "network", "3": "training"}.get(finding.code[2:3], "configuration")


@dataclass(frozen=True)
class Entry:
    """Cost of findings with one cause.

    Attributes:
        name: The cause.
        codes: Codes of the findings.
        cost: Accuracy that it costs, between 0 and 1.
        interval: 90 % interval of the cost; None without one.
    """

    name: str
    codes: tuple[str, ...]
    cost: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Account:
    """Training accuracy, expected accuracy, and what lies between the latter and 100 %.

    Attributes:
        training: Accuracy on the training samples.
        expected: Accuracy on new data with its interval; None if it is not known.
        entries: Costs of findings, largest first. They come from different readings and need not add up.
        unexplained: What is left of the errors on new data, at least 0; None without an expected accuracy.
        score: "accuracy" with the unit that it counts if that is not the sample ("accuracy per label"), or "R^2" of
            regression: then all numbers are parts of R^2.
    """

    training: float
    expected: Expected | None
    entries: tuple[Entry, ...]
    unexplained: float | None
    score: str = "accuracy"

    def _show(self, score: float, digits: int = 1) -> str:
        """Return a score as text."""
        if is_accuracy(self.score):
            return percent(score, digits)
        return f"{score:.2f}"

    def _points(self, cost: float) -> str:
        """Return a cost as text."""
        if is_accuracy(self.score):
            return f"{100 * cost:.1f} points"
        return f"{cost:.2f}"

    @property
    def segments(self) -> list[tuple[str, str, float]]:
        """Parts of a bar from 0 to 100 %: kind, label and width in per cent; empty without an expected accuracy."""
        if self.expected is None:
            return []
        # R^2 is negative for predictions worse than the mean
        value = max(self.expected.value, 0.0)
        parts = [("expected", f"expected {self.score} {self._show(self.expected.value, 0)}", value)]
        left = 1 - value
        for entry in self.entries:
            width = min(entry.cost, left)
            left -= width
            parts.append(("cost", f"{entry.name} {self._points(entry.cost)}", width))
        parts.append(("rest", f"unexplained {self._points(left)}", left))
        return [(kind, label, round(100 * width, 2)) for kind, label, width in parts if width > 0]

    @property
    def metrics(self) -> dict[str, float]:
        """The account as numbers by name, for any tracker: `mlflow.log_metrics(result.account.metrics)`.

        Accuracies and costs are fractions; costs are named after their entry, as `cost_label_errors`. Those of
        regression are called `training_r2` and `expected_r2`.
        """
        score = "accuracy" if is_accuracy(self.score) else "r2"
        numbers = {f"training_{score}": self.training}
        if self.expected is not None:
            e = self.expected
            name = f"expected_{score}"
            numbers |= {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
        for entry in self.entries:
            name = f"cost_{re.sub('[^a-z0-9]+', '_', entry.name.lower())}"
            numbers[name] = entry.cost
            if entry.interval is not None:
                numbers |= {f"{name}_low": entry.interval[0], f"{name}_high": entry.interval[1]}
        if self.unexplained is not None:
            numbers["unexplained"] = self.unexplained
        return {name: float(value) for name, value in numbers.items()}

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """The account as rows: name, number, and interval with source or codes; names of costs are indented."""
        rows = [(f"training {self.score}", self._show(self.training), "")]
        if self.expected is not None:
            e = self.expected
            note = f", {e.note}" if e.note else ""
            ends = f"{self._show(e.low, 0).removesuffix(' %')} to {self._show(e.high, 0)}"
            rows.append(
                (f"expected {self.score}", self._show(e.value), f"({ends}, {e.source}{note})")
            )
        for entry in self.entries:
            interval = ""
            if entry.interval is not None:
                low, high = (self._points(end).removesuffix(" points") for end in entry.interval)
                interval = f"({low} to {high})  "
            rows.append(
                (f"  {entry.name}", self._points(entry.cost), f"{interval}{' '.join(entry.codes)}")
            )
        if self.unexplained is not None:
            rows.append(("  unexplained", self._points(self.unexplained), ""))
        return rows

    @property
    def lines(self) -> list[str]:
        """The account as text, one line per entry."""
        lines: list[str] = []
        for name, number, words in self.rows:
            width = (26, 12) if name.startswith(" ") else (17, 9)
            lines.append(f"{name:{width[0]}} {number:>{width[1]}}  {words}".rstrip())
        return lines


def cap_cost(
    cost: float, interval: tuple[float, float], expected: Expected | None
) -> tuple[float, float, float]:
    """Return a cost and the ends of its interval, at most what is missing on new data.

    Args:
        cost: The cost.
        interval: Its interval.
        expected: Score on new data; None if it is not known.
    """
    low, high = interval
    if expected is None or not expected.is_new:
        return cost, low, high
    missing, at_most = expected.missing
    return min(cost, missing), min(low, missing), min(high, at_most)


def cap_costs(
    outcomes: Iterable[Outcome], expected: Expected | None, score: str = "accuracy"
) -> list[Outcome]:
    """Return outcomes whose costs, intervals included, are at most what is missing on new data.

    A finding that would cost less than its check reports (`Check.min_cost`) becomes fine. The evidence names the cap.

    Args:
        outcomes: Outcomes of checks.
        expected: Score on new data; None if it is not known: then all costs stay. So they do where the samples are no
            new ones.
        score: Name of the score, as of `Account`.
    """
    if expected is None or not expected.is_new:
        return list(outcomes)
    missing, _ = expected.missing
    if is_accuracy(score):
        amount = f"{100 * missing:.1f} points"
    else:
        amount = f"{missing:.2f} of R^2"
    words = f"cost limited to what is missing: {amount} ({expected.source})"
    capped: list[Outcome] = []
    for outcome in outcomes:
        if not isinstance(outcome, Finding) or outcome.cost is None:
            capped.append(outcome)
            continue
        interval = outcome.interval
        cost, low, high = cap_cost(outcome.cost, interval or (0.0, 0.0), expected)
        if interval is not None:
            interval = low, high
        evidence = outcome.evidence
        if cost < outcome.cost:
            evidence = f"{evidence}; {words}"
        known = list_checks().get(outcome.code)
        if known is not None and cost < min(outcome.cost, known.min_cost):
            capped.append(Fine(evidence, outcome.code, outcome.title))
        else:
            capped.append(replace(outcome, cost=cost, interval=interval, evidence=evidence))
    return capped


def make_account(
    training: float, expected: Expected | None, findings: Sequence[Finding], score: str = "accuracy"
) -> Account:
    """Return the account of findings, those of one cause joined.

    Args:
        training: Score on the training samples.
        expected: Score on new data; None if it is not known.
        findings: The findings.
        score: Name of the score, as of `Account`.
    """
    by_group: dict[str, list[Finding]] = {}
    for finding in findings:
        cause = cause_of(finding)
        if finding.cost and cause:
            by_group.setdefault(cause, []).append(finding)
    entries: list[Entry] = []
    for name, members in by_group.items():
        largest = max(members, key=lambda finding: finding.cost or 0.0)
        codes = tuple(sorted(finding.code for finding in members))
        entries.append(Entry(name, codes, float(largest.cost or 0.0), largest.interval))
    entries.sort(key=lambda entry: -entry.cost)
    unexplained = None
    if expected is not None:
        unexplained = max(1 - expected.value - sum(entry.cost for entry in entries), 0.0)
    return Account(training, expected, tuple(entries), unexplained, score)


# End of advice that fixes of the training configuration may follow; it goes once `train_fn=` was passed.
TRY_IT = ": pass train_fn= to try it"
# Beginning of advice that stands behind that of findings with a cost.
AFTER_OTHERS = "act on the findings above first; then "


def _share_costs(findings: Sequence[Finding], shortfall: IntervalEstimate | None) -> list[Finding]:
    """Return findings of which those of one cause have the largest of their costs.

    Args:
        findings: The findings.
        shortfall: By how much the network is less accurate than the best method without it; its interval is that of
            every cost that equals it.
    """
    largest: dict[str, Finding] = {}
    for finding in findings:
        cause = cause_of(finding)
        if not cause or finding.cost is None:
            continue
        if cause not in largest or finding.cost > (largest[cause].cost or 0.0):
            largest[cause] = finding
    shared: list[Finding] = []
    for finding in findings:
        most = largest.get(cause_of(finding))
        if most is None:
            shared.append(finding)
            continue
        interval = most.interval
        if shortfall is not None and most.cost == shortfall.value:
            interval = (shortfall.low, shortfall.high)
        shared.append(replace(finding, cost=most.cost, interval=interval))
    return shared


def order_findings(
    findings: Sequence[Finding],
    shortfall: IntervalEstimate | None = None,
    expected: Expected | None = None,
) -> tuple[Finding, ...]:
    """Return findings by the cost of their cause, those without a cost last; within a cause the specific one first.

    Args:
        findings: The findings.
        shortfall: See `Context.shortfall_interval`; None if it is not known.
        expected: Score on new data, by which costs are capped; None if it is not known.
    """
    if shortfall is not None:
        ends = cap_cost(shortfall.value, (shortfall.low, shortfall.high), expected)
        shortfall = IntervalEstimate(*ends)
    codes = list(CAUSES)

    def key(finding: Finding) -> tuple[bool, float, int, str]:
        if finding.code in codes:
            place = codes.index(finding.code)
        else:
            place = len(codes)
        return finding.cost is None, -(finding.cost or 0.0), place, finding.code

    ordered = sorted(_share_costs(findings, shortfall), key=key)
    if len(ordered) == 1:
        return (replace(ordered[0], action=ordered[0].action.removeprefix(AFTER_OTHERS)),)
    return tuple(ordered)
