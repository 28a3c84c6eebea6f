"""Section: findings of the checks of one network, and next steps."""

from __future__ import annotations

from typing import Any

from gapscope.checks import CheckResult


def next_steps(result: CheckResult, network: str) -> dict[str, Any]:
    """Headline, findings with their actions, and the codes that are fine or were not checked."""
    return {
        "network": network,
        "headline": result.headline,
        "findings": [
            {"code": f.code, "title": f.title, "evidence": f.evidence, "action": f.action} for f in result.findings
        ],
        "fine": [outcome.code for outcome in result.fine],
        "not_checked": [{"code": outcome.code, "reason": outcome.reason} for outcome in result.not_checked],
    }
