"""GS104: rare classes and imbalance, for which accuracy is the wrong score."""

import torch

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

RATIO, FEW = 5.0, 5


@register_check("GS104", title="class imbalance", seconds=0.01)
def imbalance(context: Context) -> Outcome:
    """Report a class ratio of five or more, or a class with fewer than five samples."""
    if not context.is_classifier or context.everything.targets is None or context.samples.targets is None:
        return NotChecked("balance needs class labels")
    labels, counts = context.samples.targets.cpu(), context.everything.targets.cpu().bincount()
    present = counts[counts > 0]
    ratio = float(present.max()) / float(present.min())
    if ratio < RATIO and int(present.min()) >= FEW:
        return Fine(f"{int(present.min())} to {int(present.max())} samples per class")
    rarest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    name = context.samples.class_names[rarest] if context.samples.class_names else str(rarest)
    correct = (context.logits.argmax(1) == labels).double()
    balanced = torch.stack([correct[labels == c].mean() for c in labels.unique()]).mean()
    return Finding(
        f"class {name} has {int(present.min())} samples, the largest {int(present.max())}; training accuracy "
        f"{context.train_accuracy:.0%}, balanced {float(balanced):.0%}",
        "report balanced accuracy, and collect or weight samples of the rare classes",
        cost=max(0.0, float(correct.mean() - balanced)) / 2 + 0.01,
    )
