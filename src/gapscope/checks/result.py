"""Result of `gapscope.check`: as text, table, JSON and a self-contained page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput
from gapscope.base.files import write_output
from gapscope.checks.account import (
    TRY_IT,
    Account,
    cap_costs,
    cause_of,
    make_account,
    order_findings,
)
from gapscope.checks.costs import settle_costs
from gapscope.checks.expected import note_on_test
from gapscope.checks.fixes import FIXES, Fix, Spec, is_advised
from gapscope.checks.headline import make_headline, reason_not_judged
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, is_information
from gapscope.checks.trials import TriedAdvice
from gapscope.results.formatting import pluralize
from gapscope.results.pages import render_fragment, render_page
from gapscope.results.result import Result, data_uri, to_builtin

if TYPE_CHECKING:
    import pandas

    from gapscope.base.samples import Samples
    from gapscope.checks.context import Context
    from gapscope.checks.estimators import EstimatorScores
    from gapscope.labels.results import LabelIssues

EXPLAIN = "gapscope explain {code}"


# Fixes that remove the cause of a finding: their gain, once they were tried, is its cost.
REMOVING = ("drop flagged labels", "correct flagged labels", "standardize inputs")


def _with_tried_cost(finding: Finding, tried: TriedAdvice) -> Finding:
    """Return a finding whose cost is at most what removing its cause gained, if that was tried without a gain."""
    removing = [name for name in finding.fixes if name in REMOVING]
    gains = [trial.first_gain for trial in tried.trials if trial.name in removing]
    if not finding.cost or not gains or not tried.without_gain(removing):
        return finding
    cost = min(finding.cost, max(*gains, 0.0))
    interval = finding.interval
    if interval is not None:
        interval = min(interval[0], cost), interval[1]
    words = "cost limited to the gain from removing them, as tried"
    return replace(finding, cost=cost, interval=interval, evidence=f"{finding.evidence}; {words}")


@dataclass(frozen=True, repr=False, eq=False)
class CheckResult(Result):
    """Findings of `gapscope.check`.

    Attributes:
        findings: Findings, ordered by cost.
        fine: Checks without a finding, by code.
        not_checked: Checks without an answer, by code.
        n_samples: Number of samples on which the network was read; all without a torch network.
        n_rows: Number of samples from which quantities of the data alone were computed.
        total: Number of samples that were passed.
        task: "classifier", "regressor", "classifier of positions" or "multi-label classifier".
        seconds: CPU seconds.
        account: Where the accuracy goes, or R^2; None without a trained network or estimator.
        not_judged: Why the accuracy on new data was not judged; empty if it was.
        interrupted: Whether Ctrl-C ended the checks early.
        tried: Fixes that were tried; the reason if none was; None without `train_fn=`.
        spec: Training configuration of `train_fn`.
        label_issues: Ranked label issues, if GS102 ran.
        samples: All samples, for thumbnails.
        has_network: Whether a network or an estimator was passed, not data alone.
        estimator: Scikit-learn estimator with its data as they were passed; None without.
        test_note: What the held-out samples lack; empty if nothing.
    """

    findings: tuple[Finding, ...]
    fine: tuple[Fine, ...]
    not_checked: tuple[NotChecked, ...]
    n_samples: int
    total: int
    task: str
    seconds: float
    n_rows: int = 0
    account: Account | None = None
    not_judged: str = ""
    interrupted: bool = False
    tried: TriedAdvice | str | None = None
    spec: Spec | None = None
    label_issues: LabelIssues | None = None
    samples: Samples | None = None
    has_network: bool = True
    estimator: EstimatorScores | None = None
    test_note: str = ""

    @classmethod
    def from_outcomes(
        cls,
        outcomes: Sequence[Outcome],
        context: Context,
        seconds: float,
        *,
        interrupted: bool = False,
    ) -> CheckResult:
        """Sort outcomes by kind and cost, and add the account.

        Args:
            outcomes: One outcome per check.
            context: What the checks computed; nothing is computed here.
            seconds: CPU seconds of the checks.
            interrupted: Whether they were ended early.
        """
        computed = context.__dict__
        expected = computed.get("expected")
        outcomes = settle_costs(outcomes, context)
        outcomes = cap_costs(outcomes, expected, context.score_name)
        found = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
        findings = order_findings(found, computed.get("shortfall_interval"), expected)
        account = None
        if "train_score" in computed and not context.untrained_because:
            account = make_account(context.train_score, expected, findings, context.score_name)
        by_code = sorted(outcomes, key=lambda outcome: outcome.code)
        return cls(
            findings=findings,
            fine=tuple(outcome for outcome in by_code if isinstance(outcome, Fine)),
            not_checked=tuple(outcome for outcome in by_code if isinstance(outcome, NotChecked)),
            n_samples=len(context.samples) if context.is_part else len(context.everything),
            total=len(context.everything),
            task=context.task_noun,
            seconds=seconds,
            n_rows=len(computed.get("rows", context.everything)),
            account=account,
            not_judged=reason_not_judged(outcomes, context),
            interrupted=interrupted,
            label_issues=computed.get("label_issues"),
            samples=context.given,
            estimator=context.estimator,
            test_note=note_on_test(context),
            has_network=not all(
                item is None for item in (context.prepared, context.estimator, context.diverged)
            ),
        )

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings."""
        return tuple(finding.code for finding in self.findings)

    def indices(self, code: str) -> list[int]:
        """Return the row numbers of the samples of a finding (empty if there is none).

        Args:
            code: Code of the check, such as "GS102".
        """
        finding = next((finding for finding in self.findings if finding.code == code), None)
        if finding is None:
            return []
        return [int(index) for index in finding.indices]

    def with_tried(self, tried: TriedAdvice | str, spec: Spec) -> CheckResult:
        """Return the result with tried advice: the finding whose fix helps first, no advice that did not help.

        Args:
            tried: What was tried, or the reason why nothing was.
            spec: Training configuration.
        """
        findings = tuple(
            replace(finding, action=finding.action.removesuffix(TRY_IT))
            for finding in self.findings
        )
        if isinstance(tried, TriedAdvice):
            best = tried.best
            helped = [
                finding
                for finding in findings
                if best is not None and is_advised(best.name, finding.fixes)
            ]
            others = [finding for finding in findings if finding not in helped]
            helped = [
                replace(finding, action=f"{best.name} (tried)")
                for finding in helped
                if best is not None
            ]
            others = [
                replace(finding, action=f"tried: no gain from {', '.join(names)}")
                if (names := tried.without_gain(finding.fixes))
                else finding
                for finding in others
            ]
            findings = (*helped, *order_findings([_with_tried_cost(f, tried) for f in others]))
        account = self.account
        if account is not None:
            account = make_account(account.training, account.expected, findings, account.score)
        return replace(self, findings=findings, account=account, tried=tried, spec=spec)

    def is_refuted(self, finding: Finding) -> bool:
        """Return whether all fixes of a finding were tried without a gain: then it is no main limit.

        Args:
            finding: One of the findings.
        """
        return isinstance(self.tried, TriedAdvice) and bool(self.tried.without_gain(finding.fixes))

    @property
    def best_fix(self) -> Fix | None:
        """The fix that was tried and helps; None if none does."""
        if isinstance(self.tried, TriedAdvice):
            best = self.tried.best
        else:
            best = None
        if best is None:
            return None
        return FIXES[best.name]

    def apply(self) -> tuple[Any, Spec]:
        """Return the training data and the training configuration with the best fix; nothing is trained.

        The data of a torch network are `gapscope.Samples`. Those of an estimator are the pair (x, y) in the form in
        which it was passed: rows of the frame, names of classes. New inputs of a model that is trained on these data go
        through `map_inputs` first.

        Raises:
            InvalidInput: No tried fix helps, or the best one changes the network.
        """
        fix = self.best_fix
        if fix is None or self.samples is None or self.spec is None:
            raise InvalidInput(
                "No fix was tried that helps. Pass train_fn= to check, or see the findings."
            )
        if fix.changes_network:
            if fix.change_network is not None:
                call = "change_network(network)"
            else:
                call = "finish_network(network, data)"
            raise InvalidInput(
                f"The best fix, {fix.name!r}, changes the network, not the data or the configuration. Call "
                f"result.best_fix.{call}, {'before' if fix.change_network is not None else 'after'} training."
            )
        if self.estimator is not None:
            return self.estimator.changed(fix, self.samples), self.spec
        return fix.apply(self.samples, self.spec)

    def map_inputs(self, inputs: Any) -> Any:
        """Return new inputs as a model needs them that was trained on the data of `apply`.

        They are scaled by the mean and the spread of the training inputs if the best fix is "standardize inputs", and
        else returned as they are.

        Args:
            inputs: New inputs: a tensor, array or frame for a network, of which a tensor is returned, or data with
                targets, of which `gapscope.Samples` are returned; of an estimator, rows in the form of its training
                inputs.

        Raises:
            InvalidInput: They lack columns of the training inputs, or have others.
        """
        fix = self.best_fix
        if fix is None or fix.scale_inputs is None or self.samples is None:
            return inputs
        if self.estimator is not None:
            return self.estimator.standardized(inputs)
        return fix.map_inputs(self.samples, inputs)

    @property
    def headline(self) -> str:
        """The main limit of the network, as one sentence."""
        return make_headline(self)

    @property
    def tried_lines(self) -> list[str]:
        """What was tried, as text; empty without `train_fn=`."""
        if isinstance(self.tried, TriedAdvice):
            fix = self.best_fix
            more = ""
            if self.estimator is not None:
                more = ", or fit a pipeline that begins with StandardScaler() to raw rows"
            if fix is not None and fix.scale_inputs is not None:
                return [
                    *self.tried.lines,
                    f"new data need the same scaling: result.map_inputs(inputs){more}",
                ]
            return self.tried.lines
        if self.tried is None:
            return []
        return [f"tried nothing: {self.tried}"]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on samples that were not used, and on how the data were read."""
        lines: list[str] = [] if self.samples is None else list(self.samples.notes)
        lines += [self.test_note] if self.test_note else []
        if self.n_samples < self.total:
            lines.append(f"The network was read on {self.n_samples:,} of {self.total:,} samples.")
        if self.n_rows < self.total:
            lines.append(
                f"GS102, GS103 and the kernel machines used {self.n_rows:,} of {self.total:,} samples, as many as "
                "time_budget= allows."
            )
        return tuple(lines)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per check."""
        import pandas

        columns = ["code", "title", "outcome", "evidence", "action", "cost", "samples"]
        rows = [
            (f.code, f.title, "finding", f.evidence, f.action, f.cost, len(f.indices))
            for f in self.findings
        ]
        rows += [(f.code, f.title, "fine", f.evidence, "", None, 0) for f in self.fine]
        rows += [(f.code, f.title, "not checked", f.reason, "", None, 0) for f in self.not_checked]
        return pandas.DataFrame(rows, columns=columns).astype({"cost": float})

    def _content(self) -> dict[str, Any]:
        """Return everything but the data."""
        return {
            "headline": self.headline,
            "samples": self.n_samples,
            "rows": self.n_rows,
            "total": self.total,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
            "not_judged": self.not_judged,
            "account": None if self.account is None else to_builtin(self.account),
            "tried": to_builtin(self.tried) if isinstance(self.tried, TriedAdvice) else self.tried,
            "best_fix": None if self.best_fix is None else self.best_fix.name,
            "findings": [
                {
                    "code": f.code,
                    "title": f.title,
                    "evidence": f.evidence,
                    "action": f.action,
                    "cost": f.cost,
                    "interval": f.interval,
                    "fixes": list(f.fixes),
                    "information": is_information(f.code),
                    "indices": self.indices(f.code),
                    "explain": EXPLAIN.format(code=f.code),
                }
                for f in self.findings
            ],
            "fine": [{"code": f.code, "title": f.title, "evidence": f.evidence} for f in self.fine],
            "not_checked": [
                {"code": f.code, "title": f.title, "reason": f.reason} for f in self.not_checked
            ],
        }

    def __repr__(self) -> str:
        n = len(self.findings)
        checked = len(self.findings) + len(self.fine)
        total = checked + len(self.not_checked)
        lines = [
            f"{n or 'No'} finding{'' if n == 1 else 's'} for a {self.task} on {pluralize(self.total, 'sample')} "
            f"({checked} of {total} checks, {self.seconds:.0f} CPU s)",
            *self.notes,
            self.headline,
            "",
        ]
        if self.account is not None:
            lines += [*self.account.lines, ""]
        if self.tried is not None:
            for line in self.tried_lines:
                # as long as the longest findings
                lines += textwrap.wrap(line, 120, subsequent_indent=" " * 7)
            lines.append("")
        for finding in self.findings:
            if is_information(finding.code):
                note = " (information)"
            else:
                note = ""
            lines += [
                f"{finding.code}  {finding.title}{note}: {finding.evidence}",
                f"       -> {finding.action} ({EXPLAIN.format(code=finding.code)})",
            ]
        if self.findings:
            lines.append("")
        if self.fine:
            lines.append(f"fine         {' '.join(outcome.code for outcome in self.fine)}")
        by_reason: dict[str, list[str]] = {}
        for outcome in self.not_checked:
            by_reason.setdefault(outcome.reason, []).append(outcome.code)
        lines += [
            f"not checked  {' '.join(codes)}: {reason}" for reason, codes in by_reason.items()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return render_fragment("check_body.html", **self._page_content())

    @check_arguments
    def write_html(self, path: str | Path) -> None:
        """Write a self-contained page with all findings and pictures of their samples.

        Args:
            path: HTML file to write; its folder must exist.
        """
        title = f"Check of a {self.task} on {pluralize(self.total, 'sample')}"
        write_output(path, render_page("check.html", title=title, **self._page_content()))

    def _page_content(self) -> dict[str, Any]:
        """Return the variables of `check_body.html`."""
        largest = max((finding.cost or 0.0 for finding in self.findings), default=0.0) or 1.0
        cards = [
            {
                "code": finding.code,
                "title": finding.title,
                "information": is_information(finding.code),
                "evidence": finding.evidence,
                "action": finding.action,
                "width": round(100 * max(finding.cost or 0.0, 0.0) / largest),
                "cost": self._cost_in_words(finding),
                "pictures": self._pictures(finding),
            }
            for finding in self.findings
        ]
        fine = [(outcome.code, outcome.title, outcome.evidence) for outcome in self.fine]
        not_checked = [
            (outcome.code, outcome.title, outcome.reason) for outcome in self.not_checked
        ]
        if self.account is None:
            account = None
        else:
            account = {"rows": self.account.rows, "bar": self.account.segments}
        return {
            "headline": self.headline,
            "notes": self.notes,
            "account": account,
            "tried": self.tried_lines,
            "cards": cards,
            "fine": fine,
            "not_checked": not_checked,
        }

    def _cost_in_words(self, finding: Finding) -> str:
        """Return the cost of a finding with the codes that share it, empty without one."""
        if not finding.cost or finding.cost < 0:
            return ""
        if self.task == "regressor":
            text = f"{finding.cost:.2f} of R^2"
        else:
            text = f"{100 * finding.cost:.1f} points"
        cause = cause_of(finding)
        others = [
            f.code for f in self.findings if cause and f is not finding and cause_of(f) == cause
        ]
        if others:
            return f"{text}, shared with {' and '.join(sorted(others))}"
        return text

    def _pictures(self, finding: Finding) -> list[tuple[int, str]]:
        """Return indices and pictures of the first samples of a finding (none unless they are images)."""
        if self.samples is None or not self.samples.inputs.is_floating_point():
            return []
        indices = [int(index) for index in list(finding.indices)[:12]]
        if self.samples.has_order:
            rows = self.samples.original(torch.arange(len(self.samples))).tolist()
        else:
            rows = []
        position = {row: i for i, row in enumerate(rows)}
        pictures = [
            (index, data_uri(self.samples.inputs[position.get(index, index)])) for index in indices
        ]
        return [(index, uri) for index, uri in pictures if uri]
