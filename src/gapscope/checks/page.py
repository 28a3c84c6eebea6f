"""Self-contained HTML page of a check result."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gapscope.labels.work_list import thumbnail

if TYPE_CHECKING:
    from gapscope.checks.registry import Finding
    from gapscope.checks.result import CheckResult

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
    uris = [(int(i), thumbnail(result.samples.inputs[int(i)])) for i in list(finding.indices)[:MAX_PICTURES]]
    return "".join(f'<img src="{uri}" alt="sample {i}" title="sample {i}">' for i, uri in uris if uri)


def render_body(result: CheckResult) -> str:
    """Return headline and outcomes, without the page around them."""
    from gapscope.checks.result import is_information

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
    rest = [(f, f.reason) for f in result.not_checked]
    for title, outcomes in (("checks are fine", fine), ("not checked", rest)):
        if outcomes:
            rows = [f"<li><code>{escape(f.code)}</code> {escape(f.title)}: {escape(text)}</li>" for f, text in outcomes]
            parts.append(f"<details><summary>{len(rows)} {title}</summary><ul>{''.join(rows)}</ul></details>")
    return "".join(parts)


def render(result: CheckResult) -> str:
    """Return the whole page."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Check</title><style>{STYLE}</style>"
        f"<h1>Check of a {escape(result.task)} on {result.n_samples:,} samples</h1>{render_body(result)}</html>"
    )
