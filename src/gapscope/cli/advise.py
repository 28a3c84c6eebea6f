"""`gapscope advise batch-norm`: effect of batch norm on a network, and equivalents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gapscope.base.errors import InvalidInput
from gapscope.cli.arguments import load_network
from gapscope.cli.factories import is_factory
from gapscope.cli.options import DATA_ROOT, JSON, LOAD, ONE_NETWORK, TIME_BUDGET
from gapscope.cli.output import print_json, print_lines, print_rows
from gapscope.results.estimate import percent

app = typer.Typer(
    help="Advise on the batch norm of a network, from its training data.",
    no_args_is_help=True,
)


@app.callback()
def root() -> None:
    """Advise on the batch norm of a network, from its training data."""


def _with_error(value: float, error: float) -> str:
    if value or error:
        return f"{value:.2g} ± {error:.1g}"
    return "0"


def _rows(advice: Any) -> list[dict[str, str]]:
    """Return the printed table, one row per layer."""
    rows: list[dict[str, str]] = []
    for row in advice.to_pandas().to_dict("records"):
        cells = {
            "layer": row["layer"],
            "zeta": f"{row['zeta']:.2g}",
            "zeta gamma²": f"{row['decay']:.2g}",
            f"batches of {advice.batch_size}": _with_error(row["excess"], row["standard_error"]),
            "of loss": percent(row["share_of_loss"], 1),
        }
        if advice.new_batch_size is not None:
            new = f"batches of {advice.new_batch_size}"
            cells[new] = _with_error(row["new_excess"], row["new_standard_error"])
        rows.append(cells)
    return rows


def _trained_batch_size(network: Path, load: str | None) -> int:
    """Return the batch size of the training of a pool's network.

    Raises:
        InvalidInput: No pool has stored the network.
    """
    from gapscope.training.checkpoints import load_tensors

    if load is not None or is_factory(network):
        raise InvalidInput(
            f"The batch size of the training of {network} is not known. Pass it: --batch-size 32."
        )
    return load_tensors(network)[1]["spec"]["training"]["batch_size"]


@app.command("batch-norm")
def batch_norm(
    network: Path = ONE_NETWORK,
    batch_size: int | None = typer.Option(
        None,
        help="Batch size whose regularization to keep. Default: that of the training of a pool's network.",
    ),
    new_batch_size: int | None = typer.Option(
        None, help="New batch size. Default: no batch statistics."
    ),
    dropout_before: list[str] = typer.Option(
        [], help="Layer whose inputs dropout drops; repeatable. Default: the last."
    ),
    passes: int = typer.Option(10, help="Random partitions into batches; more reduce the error."),
    samples: int | None = typer.Option(None, help="Number of training samples. Default: all."),
    time_budget: float = TIME_BUDGET,
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Estimate how much batch norm regularizes a network, and the effect of a new batch size."""
    from gapscope.base.samples import as_samples
    from gapscope.batch_norm.advice.batch_norm import advise_batch_norm

    loaded, data, _ = load_network(network, data_root, load)
    advice = advise_batch_norm(
        loaded,
        as_samples(data).first(samples),
        batch_size=batch_size or _trained_batch_size(network, load),
        new_batch_size=new_batch_size,
        dropout_before=dropout_before or None,
        passes=passes,
        time_budget=time_budget,
    )
    if json:
        print_json(advice)
        return
    rows = _rows(advice)
    numbers = list(rows[0])[1:]
    print_rows(rows, "What batch norm adds to the training loss", right=numbers, unfolded=numbers)
    print_lines("\n".join(f"- {sentence}" for sentence in advice.sentences))
    print_lines("When not to trust this:")
    print_lines("\n".join(f"- {caveat}" for caveat in advice.caveats))
