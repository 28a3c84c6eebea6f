"""Networks trained elsewhere in a pool: their ids, and what an earlier record of the same network keeps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gapscope.base.errors import InvalidInput
from gapscope.base.files import to_json
from gapscope.results.readings import Readings
from gapscope.results.records import Record


def added_id(name: str, settings: Mapping[str, Any]) -> str:
    """Return the id of a network that was trained elsewhere, the hash of its name and settings."""
    return hashlib.sha256(to_json([name, settings]).encode()).hexdigest()[:16]


def id_without_settings(record: Record) -> str | None:
    """Return the id that the same network would have without settings (None if it has none, or is of a grid)."""
    if not record.spec.get("hp") or "name" not in record.spec or "data" in record.spec:
        return None
    return added_id(record.spec["name"], {})


def is_same_network(first: Record, second: Record) -> bool:
    """Return whether all scores that both records have agree."""
    shared = first.scores.keys() & second.scores.keys()
    pairs = [(first.scores[name], second.scores[name]) for name in shared]
    # scores of one network on one data set agree to this relative difference, on other machines and devices as well
    return all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4**2) or (a != a and b != b) for a, b in pairs
    )


def merge_records(old: Record, new: Record) -> Record:
    """Return the new record of a network, with those scores and readings of the old one that it lacks.

    Raises:
        InvalidInput: Both are finished and their scores differ, so that they are two networks.
    """
    if old.status != "finished" or new.status != "finished":
        return new
    if not is_same_network(old, new):
        name = new.spec.get("name", new.id)
        raise InvalidInput(
            f"The pool has another network of the name {name!r}: its scores are {_format_scores(old)}, those of the "
            f"new one {_format_scores(new)}. Pass another name, other settings, or replace=True to overwrite it."
        )
    measured = {reading.measure for reading in new.readings}
    readings = [reading for reading in old.readings if reading.measure not in measured]
    unmeasured = {name: why for name, why in old.unmeasured.items() if name not in measured}
    return replace(
        new,
        scores={**old.scores, **new.scores},
        readings=Readings([*readings, *new.readings]),
        unmeasured={**unmeasured, **new.unmeasured},
    )


def _format_scores(record: Record) -> str:
    return ", ".join(
        f"{name} {value:.4g}" for name, value in record.scores.items() if name != "gap"
    )
