"""Hit rates and false-alarm rates with Wilson intervals, per code, data set and family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BAR_HITS, BAR_FALSE_ALARMS, MIN_CASES = 0.8, 0.1, 60


def wilson(successes: int, n: int) -> list[float] | None:
    """Return a rate with its 95 % Wilson interval, or None without cases."""
    if n == 0:
        return None
    rate, z = successes / n, 1.96
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    return [rate, max(0.0, middle - half), min(1.0, middle + half)]


def _rates(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    faulty, clean = (
        [case["outcome"] for case in cases if case["fault"] is kind] for kind in (True, False)
    )
    hits, alarms = faulty.count("finding"), clean.count("finding")
    answers, clean_answers = (
        len(outcomes) - outcomes.count("not checked") for outcomes in (faulty, clean)
    )
    return {
        "faults": len(faulty),
        "clean": len(clean),
        "hits": wilson(hits, len(faulty)),
        "false alarms": wilson(alarms, len(clean)),
        "answered faults": answers,
        "answered clean": clean_answers,
        "hits of answered": wilson(hits, answers),
        "false alarms of answered": wilson(alarms, clean_answers),
        "not checked": len(cases) - answers - clean_answers,
    }


def summarize(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per code: rates, threshold check, baseline, rates by data set and family."""
    rows = []
    for code in sorted({case["code"] for case in cases}):
        of_code = [case for case in cases if case["code"] == code]
        rates = _rates(of_code)
        # a fault without an answer counts as missed; a clean case without an answer is no evidence of silence
        hits, alarms = rates["hits"], rates["false alarms of answered"]
        enough = rates["faults"] >= MIN_CASES and rates["answered clean"] >= MIN_CASES
        passed = (
            hits is not None
            and alarms is not None
            and hits[0] >= BAR_HITS
            and alarms[0] <= BAR_FALSE_ALARMS
        )
        row: dict[str, Any] = {
            "code": code,
            **rates,
            "enough cases": enough,
            "meets the bar": passed,
        }
        outcomes = {True: "finding", False: "fine"}
        baseline = [
            case | {"outcome": outcomes[case["baseline"]]}
            for case in of_code
            if case["baseline"] is not None
        ]
        row["baseline"] = _rates(baseline)
        for key in ("data", "family"):
            names = sorted({case[key] for case in of_code})
            row[f"by {key}"] = {
                name: _rates([case for case in of_code if case[key] == name]) for name in names
            }
        rows.append(row)
    return rows
