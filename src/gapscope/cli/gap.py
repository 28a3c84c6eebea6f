"""`gapscope gap fit | predict`: the generalization gap, estimated from a pool of networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from gapscope.base.errors import InvalidInput
from gapscope.base.files import as_word
from gapscope.cli.arguments import record_from_argument
from gapscope.cli.options import DATA_ROOT, JSON, LOAD, NETWORKS, NO_ANSWER, POOL
from gapscope.cli.output import check_outputs, print_json, print_lines, print_table
from gapscope.cli.progress import steps
from gapscope.results.estimate import percent
from gapscope.results.records import Record, records_to_pandas

app = typer.Typer(
    help="Fit an estimator of the generalization gap on a pool, and apply it to networks.",
    no_args_is_help=True,
)

FAMILY = "network.name"


@app.command("fit")
def fit(
    pool: Path = POOL,
    measure: list[str] = typer.Option(
        [], help="Reading to use, such as unit_sparsity.zeta; repeatable."
    ),
    kind: str | None = typer.Option(
        None, help="'linear', 'ridge' or 'gaussian_process'. Default: depends on the readings."
    ),
    output: Path | None = typer.Option(None, help="Output file. Default: POOL/estimator.json."),
    json: bool = JSON,
) -> None:
    """Fit a gap estimator on a pool, and cross-validate it."""
    from gapscope.gap.columns import complete_rows, suggest_estimator
    from gapscope.gap.cross_validation import (
        MEAN_GAP,
        N_FOLDS,
        cross_validate,
        suggest_scheme,
        with_interval_for,
    )
    from gapscope.pools import open_pool
    from gapscope.report.pool_view import MIN_NETWORKS

    def check_enough(n: int) -> None:
        if n < MIN_NETWORKS:
            raise InvalidInput(
                f"A gap estimator needs {MIN_NETWORKS} finished networks or more, better dozens; {pool} has {n}. Run a "
                "larger grid, or add networks with `gapscope pool add`."
            )

    records = open_pool(pool).records()
    check_enough(sum(record.status == "finished" for record in records))
    estimator = suggest_estimator(records, features=measure or None, kind=kind)
    table = complete_rows(records_to_pandas(records), estimator.features or [])
    check_enough(len(table))
    path = output or pool / "estimator.json"
    check_outputs(path)
    estimator = with_interval_for(estimator, len(table))
    scheme = suggest_scheme(len(table))
    with steps("cross-validating the estimator") as show:
        quality = cross_validate(estimator, table, scheme=scheme, n_splits=N_FOLDS, on_fit=show)
    errors = quality.pivot(index="model", columns="metric", values="value").sort_values(by=["rmse"])
    rmse = errors["rmse"]
    # an estimator that is worse than a constant is not written
    is_useful = bool(rmse["estimator"] < rmse[MEAN_GAP])
    if is_useful:
        estimator.fit(table, table["gap"]).save(path)
    fitted_on = "all others"
    if scheme != "leave_one_out":
        fitted_on = f"those of the other {N_FOLDS - 1} of {N_FOLDS} folds"
    if json:
        print_json(
            {
                "networks": len(table),
                "predicted_from": fitted_on,
                "quality": quality.to_dict("records"),
                "written": str(path) if is_useful else None,
            }
        )
        raise typer.Exit(0 if is_useful else NO_ANSWER)
    print_lines(f"fitted on {len(table)} networks; gap of {table['gap_kind'].iloc[0]}")
    columns = ["model", "rmse", "mae", "pearson", "coverage"]
    table = errors.reset_index().filter(items=columns)
    print_table(table, f"Each network predicted from {fitted_on}")
    if not is_useful:
        print_lines(
            f"no estimator: on held-out networks it errs by {rmse['estimator']:.3f}, the mean gap by "
            f"{rmse[MEAN_GAP]:.3f}. Add networks, or pass other readings (--measure)."
        )
        raise typer.Exit(NO_ANSWER)
    if estimator.kernel_ is None:
        for name, coefficient in zip(estimator.feature_names_, estimator.coef_, strict=True):
            term = f"log {name}" if name in estimator.log_features else name
            print_lines(f"  {coefficient:+.4g} × {term}")
    print_lines(f"written: {path}")
    print_lines(f"next: gapscope gap predict {as_word(pool)} NETWORK")


def _format_assessment(assessed: Mapping[Any, Any], level: float) -> list[str]:
    """Return gap and interval of one network, or the reason why there is no estimate."""
    if assessed["verdict"] != "inside":
        lines = ["gap: no estimate", f"in domain: no, {assessed['reason']}"]
        if FAMILY in lines[1]:
            lines.append("next: pass the family in the pool that it belongs to: --family NAME")
        return lines
    interval = f"{percent(level)} interval {assessed['low']:.3f} to {assessed['high']:.3f}"
    if assessed["reason"]:  # why the interval is infinite
        interval = f"no interval: {assessed['reason']} (--level sets its coverage)"
    return [
        f"gap {assessed['prediction']:.3f}, {interval}",
        "in domain: yes, similar to the networks it was fitted on",
    ]


def _only_family(pool: Iterable[Record]) -> str | None:
    """Return the family of the pool's networks, None if there are several."""
    networks = [record.spec.get("network") for record in pool if record.status == "finished"]
    families = {network.get("name") for network in networks if isinstance(network, Mapping)}
    if len(families) == 1:
        return families.pop()
    return None


@app.command("predict")
def predict(
    pool: Path = POOL,
    networks: list[Path] = NETWORKS,
    estimator: Path | None = typer.Option(
        None, help="Fitted estimator. Default: POOL/estimator.json."
    ),
    level: float = typer.Option(0.9, help="Nominal coverage of the interval."),
    family: str | None = typer.Option(
        None,
        help="Family of networks passed as module:function. Default: that of the pool, if all have the same.",
    ),
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Measure networks on their training data and estimate their gaps, with intervals."""
    from gapscope.gap.gap_estimator import GapEstimator
    from gapscope.pools import open_pool
    from gapscope.pools.readings import RunOptions

    path = estimator or pool / "estimator.json"
    if not path.exists():
        raise InvalidInput(
            f"{path} must hold a fitted estimator; there is none. Run: gapscope gap fit {as_word(pool)}, which writes "
            "one if it errs less than the mean gap does on held-out networks."
        )
    fitted = GapEstimator.load(path)
    records = open_pool(pool).records()
    options = RunOptions(
        measures=tuple(dict.fromkeys(name.split(".")[0] for name in fitted.feature_names_)),
        measure_samples=max((record.measured_samples or 0 for record in records), default=0)
        or None,
        data_root=data_root,
    )
    family = family or _only_family(records) or ""
    table = records_to_pandas(
        [record_from_argument(network, options, family, load) for network in networks]
    )
    missing = {name: float("nan") for name in fitted.feature_names_ if name not in table}
    assessed = fitted.assess(table.assign(**missing), level=level)
    answers = assessed.to_dict("records")
    if json:
        rows = [{"network": str(path), **row} for path, row in zip(networks, answers, strict=True)]
        print_json({"level": level, "answers": rows})
    else:
        for path, row in zip(networks, answers, strict=True):
            if len(networks) > 1:
                print_lines(f"{path}:")
            print_lines("\n".join(_format_assessment(row, level)))
    if any(row["verdict"] != "inside" for row in answers):
        raise typer.Exit(NO_ANSWER)
