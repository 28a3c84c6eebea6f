"""GS101: duplicates and near-duplicates, which make every estimate too good."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, Outcome, register_check

FROM = 0.02


@register_check("GS101", title="near-duplicates", seconds=0.3)
def duplicates(context: Context) -> Outcome:
    """Report samples that repeat another one exactly or nearly, from 2 % of the samples on."""
    pairs, n = context.duplicates, len(context.everything)
    repeats = sorted({j for _, j in pairs})
    fraction = len(repeats) / n
    if fraction < FROM:
        return Fine(f"{len(repeats)} of {n} samples repeat another one")
    conflicts = 0
    if context.is_classifier and context.everything.targets is not None:
        labels = context.everything.targets
        conflicts = sum(int(labels[i]) != int(labels[j]) for i, j in pairs)
    more = f", {conflicts} pairs have different labels" if conflicts else ""
    return Finding(
        f"{len(repeats)} of {n} samples repeat another one{more}",
        "remove them: accuracies measured on these data are too high",
        cost=fraction / 2,
        indices=tuple(repeats),
    )
