"""Result of `gapscope.check`: as text, table, JSON and a self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, list_checks
from gapscope.results.result import Result, data_uri

if TYPE_CHECKING:
    import pandas

    from gapscope.base.samples import Samples
    from gapscope.checks.context import Context
    from gapscope.labels.results import LabelIssues

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
        return _render_body(self)

    def write_html(self, path: str | Path) -> None:
        """Write a self-contained page with all findings and pictures of their samples."""
        Path(path).write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>Check</title><style>{STYLE}</style>"
            f"<h1>Check of a {escape(self.task)} on {self.n_samples:,} samples</h1>{_render_body(self)}</html>",
            encoding="utf-8",
        )


MAX_PICTURES = 12
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 0; }
section { border: 1px solid #8886; border-left: .4rem solid #c0504d; border-radius: .4rem; padding: .7rem 1rem;
margin: .8rem 0; } code { font-weight: 600; } .do { font-weight: 600; }
img { width: 4rem; height: 4rem; image-rendering: pixelated; margin: .2rem; }
.bar { height: .5rem; background: #c0504d; border-radius: .25rem; } ul { padding-left: 1.2rem; }
"""


def _pictures(result: CheckResult, finding: Finding) -> str:
    if result.samples is None or not result.samples.inputs.is_floating_point():
        return ""
    uris = [(int(i), data_uri(result.samples.inputs[int(i)])) for i in list(finding.indices)[:MAX_PICTURES]]
    return "".join(f'<img src="{uri}" alt="sample {i}" title="sample {i}">' for i, uri in uris if uri)


def _render_body(result: CheckResult) -> str:
    largest = max((finding.cost for finding in result.findings), default=1.0) or 1.0
    notes = {f.code: " (information)" if is_information(f.code) else "" for f in result.findings}
    cards = "".join(
        f"<section><h2><code>{escape(f.code)}</code> {escape(f.title)}{notes[f.code]}</h2><p>{escape(f.evidence)}</p>"
        f'<div class="bar" style="width:{100 * max(f.cost, 0) / largest:.0f}%" title="expected cost"></div>'
        f'<p class="do">{escape(f.action)}</p>{_pictures(result, f)}</section>'
        for f in result.findings
    )
    parts = [f"<p><strong>{escape(result.headline)}</strong></p>", cards]
    fine = [(f, f.evidence) for f in result.fine]
    not_checked = [(f, f.reason) for f in result.not_checked]
    for title, outcomes in (("checks are fine", fine), ("not checked", not_checked)):
        if outcomes:
            rows = [f"<li><code>{escape(f.code)}</code> {escape(f.title)}: {escape(text)}</li>" for f, text in outcomes]
            parts.append(f"<details><summary>{len(rows)} {title}</summary><ul>{''.join(rows)}</ul></details>")
    return "".join(parts)
