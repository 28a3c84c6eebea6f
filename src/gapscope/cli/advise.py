"""`gapscope advise batch-norm`: effect of batch norm on a stored network, and equivalents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapscope.cli.options import DATA_ROOT, JSON

if TYPE_CHECKING:
    from rich.table import Table

    from gapscope.batch_norm.advice.result import BatchNormAdvice

app = typer.Typer(help="Advise on the batch norm of a stored network, from its training data.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Advise on the batch norm of a stored network, from its training data."""


def _measured(value: float, error: float) -> str:
    return f"{value:.2g} ± {error:.1g}" if value or error else "0"


def _table(advice: BatchNormAdvice) -> Table:
    """The layers, in 80 columns unless their names are long."""
    from rich import box
    from rich.table import Table

    title = "What batch norm adds to the training loss"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("layer", overflow="fold")
    new = [] if advice.new_batch_size is None else [f"batches of {advice.new_batch_size}"]
    for name in ("zeta", "zeta gamma²", f"batches of {advice.batch_size}", "of loss", *new):
        table.add_column(name, justify="right", no_wrap=True)
    for row in advice.to_pandas().to_dict("records"):
        after = [_measured(row["new_excess"], row["new_standard_error"])] if new else []
        table.add_row(
            row["layer"], f"{row['zeta']:.2g}", f"{row['decay']:.2g}", _measured(row["excess"], row["standard_error"]),
            f"{row['share_of_loss']:.1%}", *after,
        )  # fmt: skip
    return table


@app.command("batch-norm")
def batch_norm(
    network: Path = typer.Argument(..., help="Weights file of a pool."),
    batch_size: int | None = typer.Option(
        None, help="Batch size whose regularization to keep. Default: that of the training."
    ),
    new_batch_size: int | None = typer.Option(None, help="New batch size. Default: no batch statistics."),
    dropout_before: list[str] = typer.Option(
        [], help="Layer whose inputs dropout drops; repeatable. Default: the last."
    ),
    passes: int = typer.Option(10, help="Random partitions into batches; more reduce the error."),
    samples: int | None = typer.Option(None, help="Number of training samples. Default: all."),
    data_root: Path | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Estimate how much batch norm regularizes a network, and the effect of a new batch size."""
    from rich.console import Console

    from gapscope.batch_norm.advice.batch_norm import advise_batch_norm
    from gapscope.cli.network_argument import first_samples
    from gapscope.cli.output import print_json
    from gapscope.pools.loading import load_network
    from gapscope.training.checkpoints import load_tensors

    loaded, problem = load_network(network, None if data_root is None else str(data_root))
    advice = advise_batch_norm(
        loaded,
        first_samples(problem.train, samples),
        batch_size=batch_size or load_tensors(network)[1]["spec"]["training"]["batch_size"],
        new_batch_size=new_batch_size,
        dropout_before=dropout_before or None,
        passes=passes,
    )
    if json:
        print_json(advice)
        return
    console = Console()
    console.print(_table(advice))
    for sentence in advice.sentences:
        console.print(f"- {sentence}", highlight=False, markup=False)
    console.print("When not to trust this:", highlight=False)
    for caveat in advice.caveats:
        console.print(f"- {caveat}", highlight=False, markup=False)
