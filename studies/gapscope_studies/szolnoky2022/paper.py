"""The paper's own figures, to stand beside ours."""

from __future__ import annotations

from typing import Any

Table = Any  # a pandas.DataFrame, whose own annotations allow each column to be a table
Cell = tuple[float, float, float]
COLUMNS = ("Unregularised", "Dropout", "Weight", "Loss gradient", "MGS")

# noise -> (final, standard deviation, best during training) of each column
TABLE_1: dict[float, tuple[Cell, ...]] = {
    0.0: ((89.6, 1.3, 90.2), (95.8, 0.5, 95.9), (83.1, 9.6, 87.1), (95.1, 0.5, 95.1), (95.2, 0.3, 95.2)),
    0.3: ((62.0, 2.5, 85.2), (80.9, 2.9, 92.0), (72.2, 4.2, 79.2), (88.7, 2.0, 92.0), (93.1, 0.7, 93.4)),
    0.6: ((37.3, 2.9, 73.7), (59.2, 4.1, 83.7), (10.0, 0.4, 62.3), (80.7, 5.9, 81.4), (88.4, 1.4, 89.1)),
    0.8: ((23.9, 2.4, 62.4), (39.5, 4.7, 56.6), (10.1, 0.5, 23.5), (15.1, 5.4, 17.2), (74.5, 4.0, 75.1)),
}
TABLE_2: dict[float, tuple[Cell, ...]] = {
    0.0: ((68.2, 36.7, 54.2), (14.9, 2.2, 13.9), (113.2, 53.2, 90.3), (212.4, 174.1, 104.0), (14.1, 1.0, 13.8)),
    10.0: ((54.8, 24.0, 45.2), (15.4, 2.2, 14.4), (92.6, 46.5, 69.0), (235.2, 188.6, 140.5), (14.3, 1.1, 13.6)),
    20.0: ((102.0, 116.2, 48.2), (16.6, 2.2, 15.3), (83.8, 52.7, 49.3), (266.1, 233.1, 115.9), (15.3, 1.3, 14.7)),
    30.0: ((94.8, 131.5, 39.0), (19.7, 2.8, 17.7), (70.6, 58.0, 41.9), (229.4, 225.7, 151.5), (17.8, 2.0, 16.9)),
}


def means(table: dict[float, tuple[Cell, ...]]) -> Table:
    """A table of the paper in the form of `runs.means`: one row a noise level and method."""
    import pandas

    return pandas.DataFrame(
        {"noise": noise, "method": method, "final": final, "sd": deviation, "best": best}
        for noise, cells in table.items()
        for method, (final, deviation, best) in zip(COLUMNS, cells, strict=True)
    )
