"""Pages: each opens with what the paper says, what was found and at what scale; then tables, then figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.files import read_json, to_json, write_atomically
from gapscope_studies.kit.claims import Claim, counts

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers with four digits."""
    lines = ["| " + " | ".join(_cell(name) for name in columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _frame(table: pandas.DataFrame) -> str:
    return markdown_table(list(table.columns), list(table.itertuples(index=False)))


def number_of(claim: Claim) -> str:
    """Our number with its interval, "" where there is none."""
    if claim.status or math.isnan(claim.value):
        return ""
    return f"{claim.value:.3g}" if claim.exact else str(claim.interval)


def claim_rows(claims: Sequence[Claim]) -> list[list[str]]:
    """One row a claim: source, what the paper says, its number, ours with interval and units, outcome and reason."""
    rows = []
    for claim in claims:
        outcome, reason = claim.judged
        number = number_of(claim)
        units = "" if claim.status or claim.exact else f"{claim.units} {claim.unit}"
        says = f"{claim.says} (ours)" if claim.ours else claim.says
        paper = "" if claim.paper is None else f"{claim.paper:.4g}"
        rows.append([claim.source, says, claim.quantity, paper, number, units, outcome, reason])
    return rows


CLAIM_COLUMNS = ("source", "claim", "quantity", "paper", "ours", "over", "outcome", "why")


def _save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG with its text as text: small, and the same bytes for the same numbers."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def _opening(facts: Mapping[str, Any], claims: Sequence[Claim]) -> list[str]:
    page = [f"# {facts['title']}", ""]
    if facts["says"]:
        page += [f"**What the paper says.** {facts['says']}", ""]
    found = " ".join(text for text in (f"Claims {counts(claims)}." if claims else "", facts["verdict"]) if text)
    page += [f"**What we found.** {found}", "", *(f"- {claim.sentence}" for claim in claims), ""]
    if facts["stands_in_for"]:
        rows = [[row["what"], row["paper"], row["here"]] for row in facts["stands_in_for"]]
        page += ["**At what scale.** What was run stands in for the paper's:", ""]
        page += [markdown_table(("", "the paper", "here"), rows)]
    return page


def _made(facts: Mapping[str, Any]) -> str:
    """Who made what when: commit and date of the numbers, and of the verdicts where these are younger."""
    made = f"{facts['date'][:10]}, commit {facts['commit'][:12] or 'unknown'}"
    judged = facts.get("judged")
    return (
        made
        if judged is None
        else (
            f"numbers of {made}, judged on {judged['date'][:10]}, commit {judged['commit'][:12]}, from what "
            "was stored: no learning curves"
        )
    )


def _cost(facts: Mapping[str, Any]) -> str:
    if facts["seconds_of_runs"] is None:
        return f"{facts['seconds']:.0f} s for this page; seconds of its networks were not kept"
    runs = f"{facts['runs']} runs of {facts['seconds_of_runs']:.0f} s in all, " if facts["runs"] else ""
    return f"{runs}{facts['seconds']:.0f} s for this page"


def _footer(facts: Mapping[str, Any]) -> str:
    data = ", ".join(f"{name} {value}" for name, value in facts["data"].items())
    return (
        f"Scale {facts['scale']}, seeds {_seeds(facts['seeds'])}; {_cost(facts)}; {_made(facts)}; torch "
        f"{facts['environment']['torch']}, {facts.get('device', 'cpu')}{'; data ' + data if data else ''}."
    )


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds in words, a range of consecutive ones.

    >>> _seeds([0, 1, 2]), _seeds([0, 7])
    ('0 to 2', '0, 7')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def write_part(
    folder: Path, facts: Mapping[str, Any], tables: Mapping[str, pandas.DataFrame], figures: Mapping[str, Figure | None]
) -> None:
    """Write a part's JSON, page and figures to a folder; a figure that is None lies there already."""
    folder.mkdir(parents=True, exist_ok=True)
    claims = [Claim.from_dict(row) for row in facts["claims"]]
    page = _opening(facts, claims)
    if claims:
        page += ["## Claims", "", markdown_table(CLAIM_COLUMNS, claim_rows(claims))]
    for name, table in tables.items():
        page += [f"## {name}", "", _frame(table)]
    for name, figure in figures.items():
        path = folder / f"{facts['part']}-{name}.svg"
        if figure is not None:
            _save(figure, path)
        page += [f"![{name}]({path.name})", ""]
    write_atomically(folder / f"{facts['part']}.md", "\n".join([*page, _footer(facts)]) + "\n")
    write_atomically(folder / f"{facts['part']}.json", to_json(dict(facts), indent=1) + "\n")


def write_index(folder: Path, title: str, reference: str, scale: str, parts: Mapping[str, str]) -> None:
    """Write the index of a study's parts at one scale, from their JSON files."""
    lines = [f"# {title}", "", reference, "", f"Scale: {scale}.", ""]
    for name, part_title in parts.items():
        path = folder / f"{name}.json"
        if not path.exists():
            lines += [f"- {part_title}: not run at this scale yet"]
            continue
        content = read_json(path)
        if "claims" not in content:
            lines += [f"- [{part_title}]({name}.md): stored without claims; to be run again"]
            continue
        claims = [Claim.from_dict(row) for row in content["claims"]]
        lines += [f"- [{part_title}]({name}.md): {counts(claims) or content['verdict']}"]
    write_atomically(folder / "README.md", "\n".join(lines) + "\n")
