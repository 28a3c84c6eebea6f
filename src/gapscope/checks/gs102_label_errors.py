"""GS102: label errors, with their rate and the samples."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.labels.results import TIGHT_FROM

FROM = 0.02


@register_check("GS102", title="label errors", seconds=0.5, information=True)
def label_errors(context: Context) -> Outcome:
    """Report a rate of label noise whose 90 % interval excludes 0."""
    if not context.is_classifier:
        return NotChecked("the rate of label errors needs class labels; find_label_issues ranks regression targets")
    issues = context.label_issues
    if issues is None:
        return NotChecked(context.failures["labels"])
    noise = issues.noise
    if noise is None:
        return NotChecked(issues.note)
    interval = f"90 % interval {noise.low:.0%} to {noise.high:.0%}"
    if noise.is_upper_bound and noise.high >= FROM:
        return NotChecked(
            f"at most {noise.high:.0%} of labels are wrong; clean labels are predicted at {noise.clean_accuracy:.0%}, "
            f"{TIGHT_FROM:.0%} is needed to distinguish errors from hard samples. Pass more samples"
        )
    if noise.low <= 0 or noise.rate < FROM:
        return Fine(f"at most {noise.high:.0%} of labels")
    flagged = issues.flagged
    assert flagged is not None
    return Finding(
        f"{noise.rate:.0%} of labels ({interval})",
        f"review the {len(flagged)} samples in result.label_issues and correct them",
        cost=noise.rate,
        indices=flagged,
    )
