"""`gapscope estimate NETWORK`: accuracy of trained networks on new data."""

from __future__ import annotations

import math
from pathlib import Path

import typer

from gapscope.base.errors import BudgetSpent, GapscopeError
from gapscope.cli.arguments import load_network
from gapscope.cli.options import DATA_ROOT, JSON, LOAD, NETWORKS, NO_ANSWER, TIME_BUDGET
from gapscope.cli.output import print_json, print_lines


def estimate(
    networks: list[Path] = NETWORKS,
    label_noise: float | None = typer.Option(
        None, help="Fraction of wrong training labels. Default: estimated."
    ),
    n_training: int | None = typer.Option(
        None, help="Number of samples that the networks were trained on."
    ),
    level: float = typer.Option(0.9, help="Nominal coverage of the intervals."),
    estimator: Path | None = typer.Option(
        None,
        help="File of an accuracy estimator (gapscope.fit_accuracy_estimator). Default: the shipped one.",
    ),
    time_budget: float = TIME_BUDGET,
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Estimate the accuracy of trained networks on new data from their training data."""
    from gapscope.accuracy.accuracy_after_training import AccuracyEstimate, estimate_accuracy
    from gapscope.accuracy.accuracy_estimator import AccuracyEstimator

    loaded = None if estimator is None else AccuracyEstimator.load(estimator)
    estimates: dict[Path, AccuracyEstimate] = {}
    status = 0
    for path in networks:
        try:
            network, data, initial = load_network(path, data_root, load)
            estimate = estimate_accuracy(
                network,
                data,
                initial_state=initial,
                n_training=n_training,
                label_noise=label_noise,
                level=level,
                estimator=loaded,
                time_budget=time_budget,
            )
        except GapscopeError as error:  # the other networks may have an estimate
            if len(networks) == 1:
                raise
            if not isinstance(error, BudgetSpent):
                status = 1
            estimate = AccuracyEstimate(
                task="classification",
                score=math.nan,
                samples=0,
                abstained_because=str(error),
                initial="",
                readings={},
            )
        estimates[path] = estimate
        if not json:
            print_lines((f"{path}:\n" if len(networks) > 1 else "") + repr(estimate))
    if json:
        rows = [{"network": str(path), **each.to_dict()} for path, each in estimates.items()]
        print_json({"networks": rows})
    if any(each.abstained_because for each in estimates.values()):
        raise typer.Exit(status or NO_ANSWER)
