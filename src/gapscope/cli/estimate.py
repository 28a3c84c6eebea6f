"""`gapscope estimate NETWORK`: accuracy of trained networks on new data."""

from __future__ import annotations

from pathlib import Path

import typer

from gapscope.cli.arguments import load_network
from gapscope.cli.options import DATA_ROOT, JSON, LOAD, NETWORKS, NO_ANSWER, TIME_BUDGET
from gapscope.cli.output import print_json, print_lines
from gapscope.cli.progress import handle_interrupts


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
    from gapscope.accuracy.accuracy_after_training import estimate_accuracy
    from gapscope.accuracy.accuracy_estimator import AccuracyEstimator

    loaded = None if estimator is None else AccuracyEstimator.load(estimator)
    estimates = {}
    with handle_interrupts(resumes=False):
        for path in networks:
            network, data, initial = load_network(path, data_root, load)
            estimates[path] = estimate_accuracy(
                network,
                data,
                initial_state=initial,
                n_training=n_training,
                label_noise=label_noise,
                level=level,
                estimator=loaded,
                time_budget=time_budget,
            )
            if not json:
                print_lines((f"{path}:\n" if len(networks) > 1 else "") + repr(estimates[path]))
    if json:
        rows = [{"network": str(path), **each.to_dict()} for path, each in estimates.items()]
        print_json({"networks": rows})
    if any(each.abstained_because for each in estimates.values()):
        raise typer.Exit(NO_ANSWER)
