"""One table of all stored timings, ours against every peer, with the day of each: `python benchmarks/table.py`.

Reads benchmarks/results/*.json and writes benchmarks/results/TABLE.md. Nothing is timed here; `make bench` does that,
and then this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
HEAD = """# All timings

Made by `python benchmarks/table.py` from the JSON files beside it. One thread; medians; candidates interleaved in one
process. Times are multiples of the reference, which each row names with its own time. The day of a file from before
days were written into them is that of its commit.

| work | reference | gapscope | beside it | day | file |
|---|---|---|---|---|---|
"""
Row = tuple[str, str, str, str]


def milliseconds(seconds: float) -> str:
    """A time as the table writes it."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def multiple(ratio: float) -> str:
    """A ratio as the table writes it."""
    return f"{ratio:,.0f} x" if ratio >= 100 else f"{ratio:.3g} x"


def _listed(times: Mapping[str, float], reference: float) -> str:
    return (
        ", ".join(f"{name} {multiple(seconds / reference)}" for name, seconds in times.items())
        or "-"
    )


def _candidates(found: Mapping[str, Any]) -> Iterator[Row]:
    """Kernels, traces and steps: rows of seconds."""
    rows = {name: row["seconds"] for name, row in found["rows"].items()}
    reference = rows[found["reference"]]
    ours = {
        name.removeprefix("gapscope "): s for name, s in rows.items() if name.startswith("gapscope")
    }
    others = {
        name: s
        for name, s in rows.items()
        if not name.startswith("gapscope") and name != found["reference"]
    }
    message = f"{found['reference']}, {milliseconds(reference)}"
    yield found["title"], message, _listed(ours, reference), _listed(others, reference)


def _memory(found: Mapping[str, Any]) -> Iterator[Row]:
    """Peaks in MB."""
    peaks = {
        name: "not finished" if peak is None else f"{peak:,.0f} MB"
        for name, peak in found["rows"].items()
    }
    message = {name: f"{name.removeprefix('gapscope ')} {peak}" for name, peak in peaks.items()}
    ours = [text for name, text in message.items() if name.startswith("gapscope")]
    others = [text for name, text in message.items() if not name.startswith("gapscope")]
    yield found["title"], "above the loaded network", ", ".join(ours), ", ".join(others)


def _sensitivity(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, row in found["networks"].items():
        times = dict(row["seconds"])
        reference = times.pop("two forward passes")
        ours = {key: times.pop(key) for key in list(times) if key.startswith("S")}
        work = f"output sensitivity S, {name}, {found['settings']['samples']:,} images"
        message = f"two forward passes, {milliseconds(reference)}"
        yield work, message, _listed(ours, reference), _listed(times, reference)


def _ablation(found: Mapping[str, Any]) -> Iterator[Row]:
    times, settings = dict(found["seconds"]), found["settings"]
    ours = times.pop("gapscope")
    work = f"ablation of {found['units']} units, both orders, {settings['tail']} rest, {settings['samples']} samples"
    yield work, f"gapscope, {milliseconds(ours)}", "1 x", _listed(times, ours)


def _normalization(found: Mapping[str, Any]) -> Iterator[Row]:
    for shape, rows in found["forward_and_backward"].items():
        times = {name: row["milliseconds"] / 1e3 for name, row in rows.items()}
        reference = times.pop("BatchNorm2d")
        message = f"BatchNorm2d, {milliseconds(reference)}"
        yield f"normalization, {shape}", message, _listed(times, reference), "-"


def _first_call(found: Mapping[str, Any]) -> Iterator[Row]:
    for row in found["first_calls"]:
        network = f"ResNet-18 of {row['width']:g} width, {row['normalization']} norm"
        times = f"first {row['step'] + row['check']:.3g} x, later {row['step']:.3g} x, floor {row['floor']:.3g} x"
        work = f"penalty's first call, {network}, {row['samples']} samples"
        yield work, f"plain step, {milliseconds(row['plain_step_seconds'])}", times, "-"


def _products(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, row in found["products"].items():
        message = f"products by oneDNN, {milliseconds(row['oneDNN'])}"
        yield name, message, "1 x", f"products by MKL {multiple(row['speedup'])}"


def _budgets(found: Mapping[str, Any]) -> Iterator[Row]:
    for budget, row in found["budgets"].items():
        work = found["title"].replace("max_bytes in MiB", f"max_bytes={int(budget):,} MiB")
        yield (
            work,
            "memory and CPU time",
            f"{row['megabytes']:,.0f} MB, {milliseconds(row['seconds'])}",
            "-",
        )


# what a file holds -> how it is read; files of other kinds have tables of their own in the docs
READERS: Mapping[tuple[str, ...], Callable[[Mapping[str, Any]], Iterator[Row]]] = {
    ("rows", "reference"): _candidates,
    ("rows", "title"): _memory,
    ("first_calls",): _first_call,
    ("products",): _products,
    ("budgets",): _budgets,
    ("networks", "paper"): _sensitivity,
    ("ratio_to_gapscope",): _ablation,
    ("forward_and_backward",): _normalization,
}


def table(folder: Path = RESULTS) -> str:
    """Return the whole page.

    Args:
        folder: Where the JSON files lie.

    Returns:
        Its text.
    """
    lines = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        reader = next(
            (read for keys, read in READERS.items() if all(key in result for key in keys)), None
        )
        if reader is not None:
            day = result["environment"].get("date", "unknown")
            lines += [f"| {' | '.join(row)} | {day} | {path.name} |" for row in reader(result)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (RESULTS / "TABLE.md").write_text(table())
