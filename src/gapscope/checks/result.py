"""Result of `gapscope.check`: as text, table, JSON and a self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, list_checks
from gapscope.results.formatting import pluralize
from gapscope.results.pages import render_fragment, render_page, write_page
from gapscope.results.result import Result, data_uri

if TYPE_CHECKING:
    import pandas

    from gapscope.base.samples import Samples
    from gapscope.checks.context import Context
    from gapscope.labels.results import LabelIssues

MAX_PICTURES = 12  # per finding
DOCS = "docs/checks/{code}.md"
LIMITS = {
    "1": "The data limit this network more than its training does.",
    "2": "The network limits itself before training starts.",
    "3": "The training run limits this network most.",
    "4": "The trained network is less accurate than these data allow.",
}


def is_information(code: str) -> bool:
    """Return whether a check is information only."""
    return code in list_checks() and list_checks()[code].information


@dataclass(frozen=True, repr=False)
class CheckResult(Result):
    """Findings of `gapscope.check`.

    Attributes:
        findings, fine, not_checked: Outcomes by kind; findings are ordered by cost, the others by code.
        n_samples, total: Number of samples that were checked, and that were passed.
        task: "classifier" or "regressor".
        label_issues: Ranked label issues, if GS102 ran.
        samples: All samples, for thumbnails.
    """

    findings: tuple[Finding, ...]
    fine: tuple[Fine, ...]
    not_checked: tuple[NotChecked, ...]
    n_samples: int
    total: int
    task: str
    seconds: float
    label_issues: LabelIssues | None = None
    samples: Samples | None = None

    @classmethod
    def from_outcomes(cls, outcomes: Sequence[Outcome], context: Context, seconds: float) -> CheckResult:
        """Sort outcomes by kind and cost."""
        findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
        by_code = sorted(outcomes, key=lambda outcome: outcome.code)
        return cls(
            findings=tuple(sorted(findings, key=lambda finding: -finding.cost)),
            fine=tuple(outcome for outcome in by_code if isinstance(outcome, Fine)),
            not_checked=tuple(outcome for outcome in by_code if isinstance(outcome, NotChecked)),
            n_samples=len(context.samples),
            total=len(context.everything),
            task="classifier" if context.is_classifier else "regressor",
            seconds=seconds,
            label_issues=context.__dict__.get("label_issues"),
            samples=context.everything,
        )

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings."""
        return tuple(finding.code for finding in self.findings)

    def indices(self, code: str) -> list[int]:
        """Return the samples of a finding (empty if there is none)."""
        finding = next((finding for finding in self.findings if finding.code == code), None)
        return [] if finding is None else [int(index) for index in finding.indices]

    @property
    def headline(self) -> str:
        """The main limit of the network, as one sentence."""
        checked = len(self.findings) + len(self.fine)
        if not self.findings:
            return f"Nothing was found that limits this {self.task} ({checked} checks)."
        supported = [finding for finding in self.findings if not is_information(finding.code)]
        if supported:
            return LIMITS[supported[0].code[2]]
        limit = LIMITS[self.findings[0].code[2]]
        return f"Not certain: {limit[0].lower()}{limit[1:]}"

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per check."""
        import pandas

        columns = ["code", "title", "outcome", "evidence", "action", "cost", "samples"]
        rows = [(f.code, f.title, "finding", f.evidence, f.action, f.cost, len(f.indices)) for f in self.findings]
        rows += [(f.code, f.title, "fine", f.evidence, "", float("nan"), 0) for f in self.fine]
        rows += [(f.code, f.title, "not checked", f.reason, "", float("nan"), 0) for f in self.not_checked]
        return pandas.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the data as JSON-serializable values."""
        return {
            "headline": self.headline,
            "samples": self.n_samples,
            "seconds": self.seconds,
            "findings": [
                {"code": f.code, "title": f.title, "evidence": f.evidence, "action": f.action, "cost": f.cost,
                 "information": is_information(f.code), "indices": self.indices(f.code),
                 "page": DOCS.format(code=f.code.lower())}
                for f in self.findings
            ],
            "fine": [{"code": f.code, "title": f.title, "evidence": f.evidence} for f in self.fine],
            "not_checked": [{"code": f.code, "title": f.title, "reason": f.reason} for f in self.not_checked],
        }  # fmt: skip

    def __repr__(self) -> str:
        n, checked = len(self.findings), len(self.findings) + len(self.fine)
        total = checked + len(self.not_checked)
        samples = f"{self.n_samples:,} samples" + (f" of {self.total:,}" if self.total > self.n_samples else "")
        lines = [
            f"{n or 'No'} finding{'' if n == 1 else 's'} for a {self.task} on {samples} ({checked} of {total} checks, "
            f"{self.seconds:.0f} s)",
            self.headline,
            "",
        ]
        for finding in self.findings:
            note = " (information)" if is_information(finding.code) else ""
            lines += [
                f"{finding.code}  {finding.title}{note}: {finding.evidence}",
                f"       -> {finding.action} ({DOCS.format(code=finding.code.lower())})",
            ]
        if self.findings:
            lines.append("")
        if self.fine:
            lines.append(f"fine         {' '.join(outcome.code for outcome in self.fine)}")
        by_reason: dict[str, list[str]] = {}
        for outcome in self.not_checked:
            by_reason.setdefault(outcome.reason, []).append(outcome.code)
        lines += [f"not checked  {' '.join(codes)}: {reason}" for reason, codes in by_reason.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return render_fragment("check_body.html", **self._page_content())

    def write_html(self, path: str | Path) -> None:
        """Write a self-contained page with all findings and pictures of their samples."""
        title = f"Check of a {self.task} on {pluralize(self.n_samples, 'sample')}"
        write_page(path, render_page("check.html", title=title, **self._page_content()))

    def _page_content(self) -> dict[str, Any]:
        """Return the variables of `check_body.html`."""
        largest = max((finding.cost for finding in self.findings), default=0.0) or 1.0
        cards = [
            {
                "code": finding.code,
                "title": finding.title,
                "information": is_information(finding.code),
                "evidence": finding.evidence,
                "action": finding.action,
                "width": round(100 * max(finding.cost, 0.0) / largest),
                "pictures": self._pictures(finding),
            }
            for finding in self.findings
        ]
        fine = [(outcome.code, outcome.title, outcome.evidence) for outcome in self.fine]
        not_checked = [(outcome.code, outcome.title, outcome.reason) for outcome in self.not_checked]
        return {"headline": self.headline, "cards": cards, "fine": fine, "not_checked": not_checked}

    def _pictures(self, finding: Finding) -> list[tuple[int, str]]:
        """Return indices and pictures of the first samples of a finding (none unless they are images)."""
        if self.samples is None or not self.samples.inputs.is_floating_point():
            return []
        indices = [int(index) for index in list(finding.indices)[:MAX_PICTURES]]
        pictures = [(index, data_uri(self.samples.inputs[index])) for index in indices]
        return [(index, uri) for index, uri in pictures if uri]
