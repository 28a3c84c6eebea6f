"""Pages of results: the paper's statement, findings, scale, claims, tables and figures."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope_studies.kit.claims import HELD, NOT_HELD, OUTCOMES, Claim, counts
from gapscope_studies.kit.provenance import history_in_words

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from gapscope_studies.kit.study import Study

# only the run itself can write what is between these two lines; all else is generated from the JSON
BODY, MADE = "<!-- tables and figures -->", "<!-- how it was made -->"
CLAIM_COLUMNS = ("what is claimed", "the paper", "ours", "verdict")


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """Format a Markdown table, numbers with four digits."""
    lines = [
        "| " + " | ".join(_cell(name) for name in columns) + " |",
        "|" + " --- |" * len(columns),
    ]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def claim_row(claim: Claim) -> list[str]:
    """Return the row of a claim: statement, the paper's number, ours, outcome with reason."""
    outcome, reason = claim.verdict
    if outcome in (HELD, NOT_HELD) and len(claim.compared) == 1:
        reason = "; ".join(
            [
                *([reason] if reason else []),
                f"{claim.compared[0].name} alone, no networks are compared",
            ]
        )
    paper = "" if claim.paper is None else f"{claim.paper:.4g}"
    statement = f"{claim.source}: {claim.statement}{' (ours)' if claim.ours else ''}"
    number = "" if claim.status or math.isnan(claim.value) else f"{claim.quantity}: {claim.number}"
    return [statement, paper, number, f"**{outcome}**{': ' if reason else ''}{reason}"]


def claims_in_words(claims: Sequence[Claim], most: int = 4) -> str:
    """Return the first statements of each outcome."""
    texts = []
    for outcome in OUTCOMES:
        statements = [
            f"{c.statement}{' (ours)' if c.ours else ''}" for c in claims if c.outcome == outcome
        ]
        if statements:
            more = f"; and {len(statements) - most} more" if len(statements) > most else ""
            texts.append(
                f"{outcome.capitalize()} ({len(statements)}): {'; '.join(statements[:most])}{more}."
            )
    return " ".join(texts)


def scale_in_words(content: Mapping[str, Any], *, most: int = 4) -> str:
    """Return data (with their size), networks (without options), epochs and seeds of a run."""
    scale = {row["what"]: row["here"] for row in content.get("stands_in_for", ())}
    data = [
        re.sub(r", ([\d,]+) training.*", r" (\1 samples)", each)
        for each in scale.get("data", "").split("; ")
    ]
    networks = scale.get("network", "").split("; ")
    names = list(dict.fromkeys(re.sub(r" \(.*", "", name).replace("_", " ") for name in networks))
    names = [*names[:most], "others"] if len(names) > most else names
    names += (
        ["others"] if re.search(r" and \d+ more$", networks[-1]) and 1 < len(names) <= most else []
    )
    numbers = [f"{scale[name]} {name}" for name in ("epochs", "networks") if scale.get(name)]
    seeds = f"{scale.get('seeds') or len(content['seeds'])} seeds"
    texts = [
        ", ".join([*dict.fromkeys(data)][:most]),
        ", ".join(names),
        *numbers[: most - 2],
        seeds,
    ]
    return "; ".join(filter(None, texts))


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as small, byte-reproducible SVG with its text as text."""
    import matplotlib

    # points of a line that are closer to it than 0.4 pixels cannot be seen
    style: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "path.simplify_threshold": 0.4}
    with matplotlib.rc_context(style):
        text = StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    write_atomically(path, light_svg(text.getvalue()))


def _short(commit: str) -> str:
    """Return the first digits of a commit, with the "+" that marks changed files."""
    return commit[:12] + "+" * commit[12:].endswith("+") or "unknown"


def page_of(content: Mapping[str, Any], body: str) -> str:
    """Return the page of a part, around the tables and figures that its run wrote."""
    claims = [Claim.from_dict(row) for row in content["claims"]]
    page = [f"# {content['title']}", ""]
    if content["says"]:
        page += [f"**What the paper says.** {content['says']}", ""]
    page += [
        f"**What we found.** {' '.join(filter(None, (claims_in_words(claims), content['verdict'])))}",
        "",
    ]
    page += [f"**At what scale.** {content['scale'].capitalize()}: {scale_in_words(content)}.", ""]
    page += (
        [markdown_table(CLAIM_COLUMNS, [claim_row(claim) for claim in claims])] if claims else []
    )
    if content["stands_in_for"]:
        rows = [[row["what"], row["paper"], row["here"]] for row in content["stands_in_for"]]
        page += ["## What stands in for what", "", markdown_table(("", "the paper", "here"), rows)]
    date, evaluation = (
        f"{content['date'][:10]}, commit {_short(content['commit'])}",
        content.get("judged"),
    )
    origin = f"Made on {date}"
    if evaluation is not None:  # verdicts that are younger than the numbers
        origin = f"Numbers of {date}, judged on {evaluation['date'][:10]}, commit {_short(evaluation['commit'])}, "
        origin += "from what was stored: no learning curves"
    cost = f"{content['seconds']:.0f} s for this page"
    if content["seconds_of_runs"] is None:
        cost += "; seconds of its networks were not kept"
    elif content["runs"]:
        cost = f"{content['runs']} runs of {content['seconds_of_runs']:.0f} s in all, {cost}"
    data = "; ".join(f"{name}: {value}" for name, value in content["data"].items())
    history = history_in_words(content.get("settings", ()))
    page += [BODY, body.strip("\n"), MADE, "", "## How it was made", ""]
    page += [
        f"- {origin}; torch {content['environment']['torch']}, {content.get('device', 'cpu')}."
    ]
    page += [f"- Scale {content['scale']}, seeds {_seeds(content['seeds'])}; {cost}."]
    page += [f"- Data by SHA-256 of what was taken: {data}."] if data else []
    page += [f"- Settings: {history}"] if history else []
    page += (
        [f"- The settings have changed since: {'; '.join(content['outdated'])}."]
        if content.get("outdated")
        else []
    )
    return "\n".join(page) + "\n"


# raw rows of `numbers`, from which the rest was computed; the work folder has them
RAW = ("recordings", "runs")


def _without_raw_rows(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    is_raw = {
        key: key in RAW and isinstance(item, Sequence | Mapping) for key, item in value.items()
    }
    return {key: _without_raw_rows(item) for key, item in value.items() if not is_raw[key]}


def stored_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a part, without its raw rows unless the scale is smoke."""
    numbers = content["numbers"]
    return {
        **content,
        "numbers": numbers if content["scale"] == "smoke" else _without_raw_rows(numbers),
    }


def write_part(
    folder: Path,
    content: Mapping[str, Any],
    tables: Mapping[str, pandas.DataFrame],
    figures: Mapping[str, Figure],
) -> None:
    """Write the JSON, page and figures of a part to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    body = [""]
    for name, table in tables.items():
        if table.empty:
            continue
        body += [
            f"## {name}",
            "",
            markdown_table(list(table.columns), list(table.itertuples(index=False))),
        ]
    for name, figure in figures.items():
        path = folder / f"{content['part']}-{name}.svg"
        save_figure(figure, path)
        body += [f"![{name}]({path.name})", ""]
    write_atomically(folder / f"{content['part']}.md", page_of(content, "\n".join(body)))
    write_atomically(
        folder / f"{content['part']}.json", light_json(to_json(stored_content(content)))
    )


def rewrite(folder: Path, part: str) -> None:
    """Rewrite a page from its JSON with the current guard. Its tables and figures stay."""
    path = folder / f"{part}.md"
    text = path.read_text("utf-8")
    if text.count(BODY) != 1 or text.count(MADE) != 1:
        raise InvalidInput(
            f"{path} must hold the lines {BODY} and {MADE} once each; run its part with --again."
        )
    body = text.split(BODY)[1].split(MADE)[0]
    write_atomically(path, page_of(read_json(folder / f"{part}.json"), body))


def write_index(folder: Path, study: Study, scale: str) -> None:
    """Write the index of the parts of a study at one scale, from their JSON files."""
    lines = [f"# {study.title}", "", study.reference, "", f"Scale: {scale}.", ""]
    for part in study.parts:
        path = folder / f"{part.name}.json"
        if path.exists():
            content = read_json(path)
            summary = (
                counts([Claim.from_dict(row) for row in content["claims"]]) or content["verdict"]
            )
            lines.append(f"- [{part.title}]({part.name}.md): {summary}")
        else:
            lines.append(f"- {part.title}: not run at this scale yet")
    write_atomically(folder / "README.md", "\n".join(lines) + "\n")


# --- compact forms: JSON of five digits, SVG with tenths of a point

DIGITS, DEEPEST = 5, 2
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def light_json(text: str) -> str:
    """Format JSON with five significant digits, one line per value below the second level."""

    def lines(value: Any, depth: int) -> str:
        if not value or depth >= DEEPEST or not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        pad = " " * (depth + 1)
        if isinstance(value, dict):
            items = [
                f"{json.dumps(str(key))}: {lines(item, depth + 1)}" for key, item in value.items()
            ]
        else:
            items = [lines(item, depth + 1) for item in value]
        first, last = "{}" if isinstance(value, dict) else "[]"
        return first + "\n" + ",\n".join(pad + item for item in items) + "\n" + " " * depth + last

    return lines(_rounded(json.loads(text)), 0) + "\n"


def _tenths(text: str) -> str:
    return " ".join(_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", text).split())


def _classes(text: str) -> str:
    """Move styles that occur three times or more to one style sheet."""
    frequent = [
        style for style, n in Counter(re.findall(r'style="([^"]+)"', text)).most_common() if n > 2
    ]
    names = {style: f"s{number}" for number, style in enumerate(frequent)}
    sheet = "".join(f".{name}{{{style}}}" for style, name in names.items())
    text = re.sub(
        r'style="([^"]+)"', lambda m: f'class="{names[m[1]]}"' if m[1] in names else m[0], text
    )
    return text.replace("<defs>", f"<defs><style>{sheet}</style>", 1)


def _short_names(text: str) -> str:
    """Shorten the ids that are referred to, and drop all others."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', text))
    names = {name: f"i{number}" for number, name in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", text)
    return re.sub(r'(href="|url\()#([\w.-]+)', lambda m: f"{m[1]}#{names[m[2]]}", text)


def light_svg(text: str) -> str:
    """Round the numbers of a figure to tenths, and write each style once."""
    if "<style>.s0{" in text:  # light already
        return text
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bd="([^"]*)"', lambda m: f'd="{_tenths(m[1])}"'.replace("L ", "L"), text)
    text = re.sub(
        r'\b(x|y|x1|y1|x2|y2)="(-?\d+\.\d+)"', lambda m: f'{m[1]}="{float(m[2]):.1f}"', text
    )
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(translate\()([^)]*)\)", lambda m: f"{m[1]}{_tenths(m[2])})", text)
    text = re.sub(
        r"font(-family)?: ([\d.]+px )?'[^;\"]*sans-serif[^;\"]*", r"font\1: \2sans-serif", text
    )
    return _classes(re.sub(r"\s*\n\s*", "\n", _short_names(text)))
