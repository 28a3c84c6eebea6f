"""`gapscope learning-curve`: accuracy with all samples, from runs on subsets."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from gapscope.base.errors import InvalidInput
from gapscope.base.files import as_word, to_json
from gapscope.cli.arguments import is_table, read_grid, read_labelled_table
from gapscope.cli.factories import (
    call_for_all,
    call_function,
    import_function,
    import_object,
    is_factory,
)
from gapscope.cli.options import DATA_ROOT, GROUPS, JSON, LABEL_COLUMN
from gapscope.cli.output import print_json, print_lines, print_note, print_table
from gapscope.cli.progress import handle_interrupts, steps


def _of_table(
    source: Path, table: Path, target: str | None, groups: str | None
) -> tuple[Any, Any, Any]:
    """Return the training function or estimator, the table as data (x, y), and the column of groups."""
    from gapscope.data.frames import encode_frame

    trained = _named(source)
    read = read_labelled_table(table, target, groups=groups)
    features: Any = read.inputs
    if not _encodes_columns(trained):
        features, notes = encode_frame(features)
        for note in notes:
            print_note(note)
    elif features.shape[1] == 1:
        features = features.iloc[:, 0]  # a vectorizer of texts takes one per row
    return trained, (features, read.labels), read.groups


def _named(source: Path) -> Any:
    """Return the training function or estimator of this name, or what a function without arguments returns."""
    from gapscope.inspection.network_checks import is_estimator

    found = import_object(source)
    if is_estimator(found) or not callable(found) or not _takes(found) or _takes(found, "x", "y"):
        return found
    return call_function(source, needed="a training function (x, y) or an estimator")


def _takes(function: Callable[..., Any], *arguments: str) -> bool:
    """Return whether a function can be called with these arguments (True if it does not say)."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def _encodes_columns(trained: Any) -> bool:
    """Return whether a pipeline begins with a transformer of columns, or a vectorizer of texts: it gets raw columns."""
    steps = getattr(trained, "steps", None)
    return bool(steps) and any(hasattr(steps[0][1], name) for name in ("transformers", "analyzer"))


def _folder_name(source: Path) -> str:
    """Return the name of the cache folder of `module:function`."""
    return re.sub(r"[:/\\]", ".", str(source))


def _folder_end(**options: Any) -> str:
    """Return the end of a cache folder's name: a hash of the options that make it another learning curve.

    Args:
        **options: Options of the command; None and the seed 0 are their defaults.

    >>> _folder_end(score=None, seed=0), _folder_end(score="f1_macro", seed=0)
    ('', '-7374a418')
    """
    passed = {name: str(value) for name, value in options.items() if value not in (None, 0)}
    if not passed:
        return ""
    return f"-{hashlib.sha256(to_json(passed).encode()).hexdigest()[:8]}"


def _runs(source: Path, data_root: str | None) -> list[tuple[str, str, Any, Any]]:
    """Return name, cache folder, training function or spec, and data of each run."""
    from torch import nn

    if is_table(source):
        raise InvalidInput(
            f"{source} is a table; what is trained on it comes first. Run: gapscope learning-curve module:name --data "
            f"{as_word(source)}, with a training function (x, y) or an estimator."
        )
    if source.is_dir():
        raise InvalidInput(
            f"{source} is a folder; a grid (TOML) or module:function is needed. Pass a folder of data to "
            "`gapscope forecast`, or return it as data from module:function."
        )
    if not is_factory(source):
        return [(name, spec.id, spec, None) for name, spec in read_grid(source, data_root).items()]
    _check_factory(source)
    returned = call_for_all(source, what="train_fn")
    if isinstance(returned.network, nn.Module):
        raise InvalidInput(
            f"{source} must return (train_fn, data) with a function (x, y) -> trained network; got a "
            f"{type(returned.network).__name__}. To evaluate a network use gapscope forecast or gapscope estimate."
        )
    return [(str(source), _folder_name(source), returned.network, returned.data)]


def _check_factory(source: Path) -> None:
    """Raise InvalidInput if `module:name` is what is trained itself, whose data are missing."""
    from gapscope.inspection.network_checks import is_estimator

    found = import_object(source)
    what = ""
    if is_estimator(found):
        what = f"an estimator ({type(found).__name__})"
    elif callable(found) and not _takes(found):
        what = f"a function ({', '.join(inspect.signature(found).parameters)})"
    if what:
        raise InvalidInput(
            f"{source} is {what} without training data. Pass a table of them, --data TABLE; or name a function without "
            "arguments that returns (train_fn, data)."
        )


def _print(curves: dict[str, Any]) -> None:
    import pandas

    if len(curves) == 1:
        print_lines(repr(*curves.values()))
        return
    table = pandas.DataFrame(
        {
            "settings": name,
            "samples": curve.samples,
            "score": curve.score,
            "90 % from": curve.low,
            "to": curve.high,
            "cost": curve.cost,
        }
        for name, curve in curves.items()
    )
    print_table(
        table,
        "Predicted on data like the training data (90 % interval; cost in full-training equivalents)",
    )
    for note in dict.fromkeys(note for curve in curves.values() for note in curve.notes):
        print_lines(note)


def learning_curve(
    target: Path = typer.Argument(
        help="TOML grid, as for `gapscope pool run`; or module:function that returns (train_fn, data); with --data "
        "module:name of the training function (x, y) or estimator, or of a function that returns it.",
    ),
    data: Path | None = typer.Option(None, help="Table of the training data (CSV, JSON, Parquet)."),
    target_column: str | None = LABEL_COLUMN,
    groups: str | None = GROUPS,
    score: str | None = typer.Option(
        None,
        help="module:function (object, inputs, targets) that scores what is trained, or the name of a scorer of "
        "scikit-learn. Default: accuracy or R^2.",
    ),
    max_width: float | None = typer.Option(None, help="Maximum width of the 90 % interval."),
    design: str = typer.Option(
        "auto",
        help="Design of the subset runs; auto selects the cheapest that reaches --max-width.",
    ),
    cache_dir: Path = typer.Option(
        Path("gapscope-learning-curve"), help="Folder of finished training runs."
    ),
    workers: int = typer.Option(1, help="Number of training processes."),
    seed: int = typer.Option(0, help="Seed of the subsets and of the training runs."),
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Train on subsets, score on the rest, and extrapolate to all samples."""
    from gapscope.accuracy.learning_curves import learning_curve as extrapolate

    if data is None:
        if target_column is not None or groups is not None:
            raise typer.BadParameter(
                "--target and --groups name columns of --data; pass the table there: gapscope learning-curve "
                "my_models:train --data table.csv. The argument is the training function or estimator."
            )
        runs = _runs(target, data_root)
        group_column = None
    else:
        train_fn, table, group_column = _of_table(target, data, target_column, groups)
        runs = [(str(target), _folder_name(target), train_fn, table)]
    score_function: Any = score
    if score and ":" in score:
        score_function = import_function(score)
    end = _folder_end(data=data, target=target_column, groups=groups, score=score, seed=seed)
    curves: dict[str, Any] = {}
    with handle_interrupts(resumes=True), steps("training") as show:
        for name, folder, train_fn, samples in runs:
            show(len(curves), len(runs))
            curve = curves[name] = extrapolate(
                train_fn,
                samples,
                score=score_function,
                max_interval_width=max_width,
                design=design,
                groups=group_column,
                seed=seed,
                cache_dir=cache_dir / f"{folder}{end}",
                workers=workers,
                data_root=data_root,
            )
            if curve.interrupted:
                break
    if json:
        rows = [{"name": name, **curve.to_dict()} for name, curve in curves.items()]
        print_json({"curves": rows})
    else:
        _print(curves)
    if any(curve.interrupted for curve in curves.values()):
        raise typer.Exit(130)
