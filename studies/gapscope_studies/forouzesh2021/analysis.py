"""What the parts share: log-log relations with intervals, the paper's figure beside ours, scatter plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.estimation.correlations import correlations
from gapscope.theory.sensitivity import predicted_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Any  # a pandas.DataFrame, whose own annotations allow each column to be a table

LABELS = {
    "s_after": "sensitivity S after training",
    "s_before": "sensitivity S before training",
    "s_train": "S on training inputs",
    "s_softmax": "sensitivity behind the softmax",
    "j": "input Jacobian norm J",
    "j_softmax": "J behind the softmax",
    "variance": "variance over runs",
    "bias_and_variance": "bias + variance",
    "test_loss": "test loss L",
    "error": "test error",
}
MARKERS = "osD^vP*X<>"


@dataclass(frozen=True)
class Relation:
    """How two positive quantities go together over configurations.

    Attributes:
        n: Number of configurations.
        rho: Pearson correlation of the logarithms, with its 95 % bootstrap interval over configurations.
        rho_low: Lower end.
        rho_high: Upper end.
        rho_raw: Pearson correlation of the numbers themselves.
        rho_raw_low: Lower end.
        rho_raw_high: Upper end.
        slope: Least-squares slope of log y on log x, with its interval.
        slope_low: Lower end.
        slope_high: Upper end.
    """

    n: int
    rho: float
    rho_low: float
    rho_high: float
    rho_raw: float
    rho_raw_low: float
    rho_raw_high: float
    slope: float
    slope_low: float
    slope_high: float

    def text(self) -> str:
        """Correlation and interval in one phrase."""
        return f"{self.rho:.3f} [{self.rho_low:.3f}, {self.rho_high:.3f}] over {self.n} configurations"


def _slopes(x: numpy.ndarray, y: numpy.ndarray, weights: numpy.ndarray) -> numpy.ndarray:
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    spread = (weights * x * x).sum(1)
    return (weights * x * y).sum(1) / numpy.where(spread > 1e-12, spread, numpy.nan)


def relation(table: Table, x: str, y: str = "test_loss", *, n_bootstrap: int = 2000) -> Relation:
    """Return the relation of two columns; rows where one of them is not positive and finite are left out.

    Args:
        table: One row a configuration.
        x: Column of the abscissa.
        y: Column of the ordinate.
        n_bootstrap: Resamples of the configurations.

    Returns:
        Correlations and slope; NaN with fewer than three rows.

    >>> import pandas
    >>> line = relation(pandas.DataFrame({"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}), "a", "b")
    >>> round(line.rho, 9), round(line.slope, 9)
    (1.0, 0.5)
    """
    import pandas

    pair = table[[x, y]].to_numpy(dtype=float)
    pair = pair[numpy.isfinite(pair).all(1) & (pair > 0).all(1)]
    columns = {"x": pair[:, 0], "y": pair[:, 1], "log_x": numpy.log(pair[:, 0]), "log_y": numpy.log(pair[:, 1])}
    frame, n = pandas.DataFrame(columns), len(pair)
    if n < 3:
        return Relation(n, *([math.nan] * 9))
    raw = correlations(frame, ["x"], target="y", baseline=None, n_bootstrap=n_bootstrap).loc["x"]
    logs = correlations(frame, ["log_x"], target="log_y", baseline=None, n_bootstrap=n_bootstrap).loc["log_x"]
    resamples = numpy.random.default_rng(0).multinomial(n, numpy.full(n, 1 / n), size=n_bootstrap)
    weights = numpy.concatenate([numpy.ones((1, n)), resamples])
    slopes = _slopes(columns["log_x"], columns["log_y"], weights)
    low, high = numpy.nanquantile(slopes[1:], [0.025, 0.975])
    return Relation(
        n=n,
        rho=float(logs["pearson"]),
        rho_low=float(logs["pearson_low"]),
        rho_high=float(logs["pearson_high"]),
        rho_raw=float(raw["pearson"]),
        rho_raw_low=float(raw["pearson_low"]),
        rho_raw_high=float(raw["pearson_high"]),
        slope=float(slopes[0]),
        slope_low=float(low),
        slope_high=float(high),
    )


def relation_rows(what: str, found: Relation, paper: float | str = "", slope: float | str = "") -> list[dict[str, Any]]:
    """Three rows of the table that puts the paper's correlation and slope beside ours."""
    return [
        row(f"{what}: Pearson, log-log", found.rho, (found.rho_low, found.rho_high), paper),
        row(f"{what}: Pearson", found.rho_raw, (found.rho_raw_low, found.rho_raw_high)),
        row(f"{what}: log-log slope", found.slope, (found.slope_low, found.slope_high), slope),
    ]


def row(
    what: str, ours: float | str, interval: tuple[float, float] | None = None, paper: float | str = ""
) -> dict[str, Any]:
    """One row of the table that puts the paper's figures beside ours."""
    between = "" if interval is None else f"[{interval[0]:.3g}, {interval[1]:.3g}]"
    return {"quantity": what, "paper": paper, "ours": ours, "95 % interval": between}


def comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of `row` as a table."""
    import pandas

    return pandas.DataFrame(list(rows))


def fitted(table: Table) -> Table:
    """Configurations whose networks fit their training data, the paper's condition; all where fewer than three do."""
    kept = table[table["fitted"]]
    return kept if len(kept) >= 3 else table


def left_out(table: Table) -> str:
    """Say how many configurations the relation leaves out."""
    number = int((~table["fitted"].astype(bool)).sum())
    if not number:
        return ""
    if len(table) - number < 3:
        return f" {number} of {len(table)} configurations did not fit their training data; all are used."
    return f" {number} of {len(table)} configurations did not fit their training data and are left out."


def point_table(table: Table, *columns: str) -> Table:
    """The columns of the points that a reader wants to see."""
    shown = [name for name in ("train_accuracy", "test_accuracy", "parameters", "runs") if name in table]
    return table[["family", "name", *columns, *shown]]


def scatter(
    table: Table,
    x: str,
    y: str = "test_loss",
    *,
    title: str = "",
    predicted: bool = False,
    whiskers: bool = False,
) -> Figure:
    """Log-log scatter plot, one marker a configuration, one colour a family; open markers did not fit their data.

    Args:
        table: One row a configuration.
        x: Column of the abscissa.
        y: Column of the ordinate.
        title: Title.
        predicted: Whether to draw eq. (9).
        whiskers: Whether to draw the smallest and largest S over runs.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y), title=title)
    for number, (family, group) in enumerate(table.groupby("family", sort=False)):
        colour, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        for is_fitted, part in group.groupby("fitted"):
            face = colour if is_fitted else "none"
            axes.scatter(part[x], part[y], s=26, marker=marker, facecolors=face, edgecolors=colour, linewidths=0.9)
        axes.scatter([], [], s=26, marker=marker, color=colour, label=str(family))
        if whiskers:
            axes.hlines(group[y], group["s_after_min"], group["s_after_max"], color=colour, alpha=0.4, linewidth=1)
    if predicted:
        _draw_prediction(axes, table, x)
    axes.legend(fontsize=7, frameon=False)
    return figure


def _draw_prediction(axes: Any, table: Table, x: str) -> None:
    ends = [table[x].min(), table[x].max()]
    facts = {
        "n_outputs": int(table["outputs"].iloc[0]),
        "input_second_moment": float(table["mean_square_input"].iloc[0]),
    }
    losses = [predicted_loss(end, **facts) for end in ends]
    axes.plot(ends, losses, color="0.5", linestyle="--", linewidth=1, label="eq. (9)")


def over_predicted(table: Table) -> dict[str, float]:
    """Test loss over eq. (9): smallest, median and largest ratio over the configurations."""
    ratios = [
        entry.test_loss
        / predicted_loss(entry.s_after, n_outputs=int(entry.outputs), input_second_moment=entry.mean_square_input)
        for entry in table.itertuples()
        if entry.s_after > 0
    ]
    low, middle, high = numpy.quantile(ratios, [0.0, 0.5, 1.0]).tolist()
    return {"smallest": low, "median": middle, "largest": high}


def plain(found: Relation) -> dict[str, float]:
    """The relation as plain values."""
    return asdict(found)
