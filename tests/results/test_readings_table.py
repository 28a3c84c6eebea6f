"""Readings as people see them: in words, a row per measure, at most fifteen lines."""

from __future__ import annotations

import math

from gapscope.results.readings import Reading, Readings


def reading(name: str, value: float = 0.25, **facts: str) -> Reading:
    return Reading(measure=name.split(".")[0], number=name.split(".", 1)[-1], value=value, **facts)  # type: ignore[arg-type]


def margins(n: int) -> list[Reading]:
    title = "distance from the boundary: "
    names = [f"margins.{layer}.{part}" for layer in ("input", "h1", "h2") for part in ("lower", "median")][:n]
    return [reading(name, k + 0.5, title=title + name, units="spreads") for k, name in enumerate(names)]


def test_a_number_is_said_in_words_with_its_units_and_its_note() -> None:
    one = reading("loss", title="loss on the samples", units="nats", note="500 of 2,000 samples")
    head, row, use = str(Readings([one])).splitlines()
    assert head.split() == ["measure", "value", "error", "better", "what", "it", "is"]
    assert row.split(maxsplit=4) == ["loss", "0.25", "exact", "-", "loss on the samples [nats]; 500 of 2,000 samples"]
    assert use.startswith("no check uses these numbers")
    assert str(Readings([reading("own", units="grams")])).splitlines()[1].endswith("grams")
    assert "checks use accuracy (GS401, GS402)" in str(Readings([reading("accuracy"), one]))
    assert "no value" in str(Readings([reading("own", math.nan, note="there is none")]))


def test_a_family_is_one_row_with_its_medians() -> None:
    (_, row, _) = str(Readings(margins(6))).splitlines()
    assert row.split(maxsplit=2)[:2] == ["margins.*", "6"] and "numbers" in row
    assert row.endswith("distance from the boundary: input.median 1.5, h1.median 3.5, h2.median 5.5 [spreads]")
    assert len(str(Readings(margins(4))).splitlines()) == 6


def test_never_more_than_fifteen_lines() -> None:
    many = [reading(f"m{k}") for k in range(40)]
    why = {f"u{k}": f"reason {k}" for k in range(30)}
    said = str(Readings(many, why, [f"note {k}" for k in range(9)])).splitlines()
    assert len(said) == 15 and sum(line.startswith("note: ") for line in said) == 3
    assert any("more; .to_pandas() has all" in line for line in said) and any(".unmeasured" in line for line in said)
