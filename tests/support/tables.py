"""Tables as JSON-serializable values, so that tests compare numbers and texts."""

from __future__ import annotations

from typing import Any

import pandas


def rows_of(table: pandas.DataFrame) -> dict[str, dict[str, Any]]:
    """Row name -> column -> value."""
    return {
        str(name): {str(key): value for key, value in row.items()}
        for name, row in table.to_dict("index").items()
    }
