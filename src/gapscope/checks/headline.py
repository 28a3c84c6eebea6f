"""Headline of `gapscope.check`: the main limit of a network, or why none is named, as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gapscope.checks.account import limit_of
from gapscope.checks.fixes import is_advised
from gapscope.checks.registry import Finding, NotChecked, Outcome, is_information, list_checks
from gapscope.checks.trials import TriedAdvice
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    from gapscope.checks.context import Context
    from gapscope.checks.result import CheckResult

INTERRUPTED = "interrupted"  # reason of checks that Ctrl-C did not let run
LIMITS = {
    "data": "The data limit this {task} more than its training does.",
    "network": "The network itself limits this {task} most: its features.",
    "training": "The training run limits this {task} most.",
    "configuration": "This {task} is less accurate than these data allow.",
    "overfitting": "This {task} predicts its training samples much better than new data.",
    "shift": "The test samples differ from the training samples, which may cost this {task} most.",
    "noise": "Small noise in the inputs changes predictions of this {task}.",
}
# Costs in another score than that of new data: balanced accuracy, and the accuracy without the column that leaks.
OTHER_SCORES = ("GS104", "GS107")
# A cost below this is no limit: a point of accuracy, or 0.01 of R^2; by judgment.
SMALL = 0.01


def make_headline(result: CheckResult) -> str:
    """Return the main limit of the network, as one sentence, and the fix that was tried and helps.

    Args:
        result: Result of a check.
    """
    text, named = _main_limit(result)
    best = result.best_fix
    if (
        best is None
        or best.name in text
        or (named is not None and is_advised(best.name, named.fixes))
    ):
        return text
    return f"{text} A fix that was tried helps: {best.name}."


def _main_limit(result: CheckResult) -> tuple[str, Finding | None]:
    """Return the main limit of the network, as one sentence, and the finding that it is about, if there is one."""
    checked = len(result.findings) + len(result.fine)
    unfinished = sum(outcome.reason == INTERRUPTED for outcome in result.not_checked)
    if unfinished:
        count = pluralize(checked, "check")
        return f"Interrupted: {count} finished, {unfinished} did not run.", None
    if result.interrupted:
        return "Interrupted: all checks finished, and the trials of advice did not.", None
    if not checked:
        reason = result.not_judged or "no check ran"
        return f"Not judged: {reason}. No check had an answer.", None
    if not result.findings:
        return _without_finding(result, checked), None
    if not result.has_network:
        return _limit_of_data(result), None
    findings = [finding for finding in result.findings if not _is_small(finding, result)]
    if not findings:
        return _small(result), None
    # what is omitted from the score limits it only where nothing else does
    of_score = [finding for finding in findings if not _is_left_out(finding, result)]
    if of_score or result.best_fix is not None:
        findings = of_score
    return _largest(findings, result)


def _largest(findings: Sequence[Finding], result: CheckResult) -> tuple[str, Finding | None]:
    """Return the limit that costs most, as the account has it, and its finding; a fix that helps more is the limit."""
    most = max((finding.cost or 0.0 for finding in findings), default=0.0)
    if most < SMALL:
        most = 0.0
    largest = [finding for finding in findings if (finding.cost or 0.0) >= most]
    standing = [finding for finding in largest if not result.is_refuted(finding)]
    best = result.tried.best if isinstance(result.tried, TriedAdvice) else None
    if best is not None and not any(is_advised(best.name, finding.fixes) for finding in standing):
        gain = best.first_gain if best.gain is None else best.gain.value
        if not standing or 0 < most < gain:
            return _only_fix(best.name, result), None
    if not standing and not most:
        text = "what its findings advise was tried, without a gain"
        return f"No limit of this {result.task} is named: {text}.", None
    for finding in standing:
        if _is_certain(finding, result):
            return _limit(finding, result), finding
    first = [*standing, *largest][0]
    limit = _limit(first, result)
    limit = f"Not certain: {limit[0].lower()}{limit[1:]}"
    if not standing:
        limit = f"{limit[:-1]}, but no fix that was tried helped."
    return limit, first


def _is_certain(finding: Finding, result: CheckResult) -> bool:
    """Return whether a fix of the finding was tried and helps, or its check is reliable and its cost excludes 0."""
    if result.best_fix is not None and is_advised(result.best_fix.name, finding.fixes):
        return True
    may_be_none = finding.interval is not None and finding.interval[0] <= 0
    return not is_information(finding.code) and not may_be_none


def _only_fix(name: str, result: CheckResult) -> str:
    return f"What limits this {result.task} most is open, and a fix that was tried helps: {name}."


def _without_finding(result: CheckResult, checked: int) -> str:
    if result.best_fix is not None:
        return _only_fix(result.best_fix.name, result)
    flagged = _flagged(result)
    if result.not_judged:
        return f"Not judged: {result.not_judged}. {pluralize(checked, 'check')} found nothing{flagged}."
    return f"Nothing was found that limits this {result.task} ({pluralize(checked, 'check')}){flagged}."


def _flagged(result: CheckResult) -> str:
    """Return how many labels a review should look at, although their rate is no finding; empty for none."""
    issues = result.label_issues
    if issues is None or not issues.n_flagged:
        return ""
    kind = "target" if issues.kind == "regression" else "label"
    count = pluralize(issues.n_flagged, kind)
    return f", but {count} may be wrong: review result.label_issues"


def _is_small(finding: Finding, result: CheckResult) -> bool:
    """Return whether a finding costs next to nothing of the score on new data."""
    if finding.cost is None or finding.headline or finding.code in OTHER_SCORES:
        return False
    expected = None if result.account is None else result.account.expected
    if expected is not None and not expected.is_new:
        return False
    missing = 1.0 if expected is None else 1 - expected.value
    high = finding.cost if finding.interval is None else finding.interval[1]
    is_none = expected is not None and finding.cost <= 0
    return is_none or min(missing, high) < SMALL


def _is_left_out(finding: Finding, result: CheckResult) -> bool:
    """Return whether a finding is about test samples that the score on new data leaves out."""
    expected = None if result.account is None else result.account.expected
    return finding.code == "GS101" and bool(finding.headline) and bool(expected and expected.is_new)


def _small(result: CheckResult) -> str:
    """Return the sentence of findings that all cost next to nothing."""
    if result.best_fix is not None:
        return _only_fix(result.best_fix.name, result)
    if result.task != "regressor":
        amount = "a point of its accuracy"
    else:
        amount = f"{SMALL} of its R^2"
    if result.not_judged:
        return f"Not judged: {result.not_judged}. No finding costs this {result.task} {amount}."
    return f"Nothing large was found: no finding costs this {result.task} {amount}."


def _limit_of_data(result: CheckResult) -> str:
    """Return the sentence of findings about data without a network."""
    of_samples = [finding for finding in result.findings if not finding.headline]
    if not of_samples:
        return result.findings[0].headline
    kinds = {limit_of(finding) for finding in of_samples}
    if kinds == {"shift"}:
        return "The test samples differ from the training samples."
    if kinds == {"training"}:
        return "These data need preparation before a network is trained on them."
    return "These data limit what any network can learn from them."


def _limit(finding: Finding, result: CheckResult) -> str:
    """Return the sentence of the first finding."""
    if finding.headline:
        return finding.headline
    kind = limit_of(finding)
    is_judged = any(limit_of(other) == "training" for other in result.findings)
    if kind == "data" and result.not_judged and not is_judged:
        return f"The data limit this {result.task}; its training was not judged."
    return LIMITS[kind].format(task=result.task)


def reason_not_judged(outcomes: Sequence[Outcome], context: Context) -> str:
    """Return why no check judged the accuracy on new data (empty if one did).

    Args:
        outcomes: One outcome per check.
        context: What the checks computed.
    """
    checks = list_checks()
    judges = {code for code, check in checks.items() if check.generalization}
    answers = [outcome for outcome in outcomes if outcome.code in judges]
    if any(not isinstance(outcome, NotChecked) for outcome in answers):
        return ""
    if not answers:
        what = f"the {context.score_name} on new data"
        if vars(context).get("expected") is not None:
            # the account holds it
            what = f"whether these data allow a higher {context.score_name}"
        return f"{what} ({', '.join(sorted(judges))} did not run)"
    reason = next(
        outcome.reason for outcome in reversed(answers) if isinstance(outcome, NotChecked)
    )
    reason = context.failures.get("expected", reason).rstrip(".")
    return f"the {context.score_name} on new data ({reason})"
