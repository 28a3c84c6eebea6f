"""Arguments of the command line: networks, grids and CSV files."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.base.specs import RunSpec
    from gapscope.pools.readings import RunOptions
    from gapscope.results.records import Record

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_factory(source: Path) -> bool:
    """Return True for `module:function`, False for a file."""
    return _FACTORY.fullmatch(str(source)) is not None and not source.exists()


def is_grid(source: Path) -> bool:
    """Return True for a TOML file."""
    return source.suffix.lower() == ".toml"


def import_object(source: Path | str) -> Any:
    """Return the object named by `module:name`, else raise InvalidInput."""
    from gapscope.base.errors import InvalidInput, did_you_mean

    if _FACTORY.fullmatch(str(source)) is None:
        raise InvalidInput(f"{source} must be module:function, such as my_models:load.")
    module_name, function_name = str(source).split(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise InvalidInput(
            f"{source} must name a module that can be imported from here; there is no {module_name!r}. Run the command "
            "in the folder that contains it."
        ) from None
    if not hasattr(module, function_name):
        suggestion = did_you_mean(function_name, [name for name in vars(module) if not name.startswith("_")])
        raise InvalidInput(f"{source} must name a function of {module_name}; it has no {function_name!r}.{suggestion}")
    return getattr(module, function_name)


def import_function(source: Path | str) -> Any:
    """Return the function named by `module:function`, else raise InvalidInput."""
    from gapscope.base.errors import InvalidInput

    function = import_object(source)
    if not callable(function):
        raise InvalidInput(f"{source} must name a function; got a {type(function).__name__}. Name a function.")
    return function


def call_factory(source: Path | str, *arguments: Path, what: str = "network") -> tuple[Any, Any]:
    """Call `module:function`, which must return two values: network (or `what`) and data."""
    from gapscope.base.errors import InvalidInput

    function, call = import_function(source), f"{source}{''.join(f' of {path}' for path in arguments)}"
    try:
        result = function(*arguments)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidInput(
            f"{call} must return ({what}, training data); it raised {type(error).__name__}: {error} "
            f"({line.filename}, line {line.lineno}). Call it in Python to see the traceback."
        ) from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidInput(f"{call} must return ({what}, training data); it returned {type(result).__name__}.")
    return result


def load_network(source: Path, data_root: str | None) -> tuple[nn.Module, Any, Any]:
    """Return network, training data and initial weights (None for `module:function`)."""
    from gapscope.pools.loading import load_with_initial

    if is_factory(source):
        return *call_factory(source), None
    network, initial, problem = load_with_initial(source, data_root)
    return network, problem.train, initial


def record_from_argument(source: Path, options: RunOptions, family: str = "") -> Record:
    """Return a record with the network's readings (`family` is for `module:function`)."""
    from gapscope.base.samples import as_samples
    from gapscope.pools.loading import measure_stored_network, record_network

    if not is_factory(source):
        return measure_stored_network(source, options)
    network, data = call_factory(source)
    samples = as_samples(data).first(options.measure_samples)
    return record_network(network, samples, name=str(source), family=family, measures=options.measures)


def read_grid(path: Path, data_root: str | None) -> dict[str, RunSpec]:
    """Return the specs of a grid by name (see `varied_settings`), or raise if data are absent."""
    from gapscope.data import find_dataset
    from gapscope.pools import Grid

    specs = list(Grid.from_toml(path))
    for name in dict.fromkeys(spec.data.name for spec in specs):
        find_dataset(name, root=data_root)
    return dict(zip(varied_settings(specs), specs, strict=True))


def varied_settings(specs: Sequence[RunSpec]) -> list[str]:
    """Name specs by the settings that differ within the grid, else by the network."""
    from gapscope.results.records import flatten

    rows = [flatten(spec.to_dict()) for spec in specs]
    keys = dict.fromkeys(key for row in rows for key in row)
    varied = [key for key in keys if len({repr(row.get(key)) for row in rows}) > 1]
    names = [", ".join(f"{key.split('.')[-1]}={row[key]}" for key in varied if key in row) for row in rows]
    return [name or spec.network.name for name, spec in zip(names, specs, strict=True)]


def _to_numbers(features: pandas.DataFrame) -> pandas.DataFrame:
    """Encode text columns as indicators and fill missing numbers with the median."""
    import pandas

    text = [name for name in features if not pandas.api.types.is_numeric_dtype(features[name])]
    names = [name for name in text if features[name].nunique() > max(20, len(features) // 2)]
    text = [name for name in text if name not in names]
    missing = int(features.drop(columns=[*text, *names]).isna().sum().sum())
    notes = [f"{', '.join(map(str, names))}: dropped, since nearly every row has a different value"] if names else []
    notes += [f"{', '.join(map(str, text))}: one column per value"] if text else []
    notes += [f"{missing} missing numbers: filled with the median of their column"] if missing else []
    for note in notes:
        typer.echo(note, err=True)
    encoded = pandas.get_dummies(features.drop(columns=names), columns=text, dtype=float)
    return encoded.fillna(encoded.median())


def read_labelled_csv(
    path: Path, target: str | None, *, like: pandas.DataFrame | None = None
) -> tuple[pandas.DataFrame, pandas.Series]:
    """Read a CSV file as features, text and missing values encoded as numbers, and labels.

    Args:
        target: Column of the labels; None for the last one.
        like: Features of another file, whose columns are returned.

    Raises:
        InvalidInput: There is no such file or column.
    """
    import pandas

    from gapscope.base.errors import InvalidInput, did_you_mean

    if not path.is_file():
        raise InvalidInput(f"{path} must be a TOML grid, a CSV file or module:function; there is no such file.")
    table = pandas.read_csv(path)
    if table.shape[1] < 2:
        raise InvalidInput(
            f"{path} must have a column of labels and at least one of features; got {list(table.columns)}."
        )
    target = target if target is not None else str(table.columns[-1])
    if target not in table:
        raise InvalidInput(f"{path} has no column {target!r}.{did_you_mean(target, [str(name) for name in table])}")
    features = _to_numbers(table.drop(columns=target))
    if like is not None:
        features = features.reindex(columns=like.columns, fill_value=0.0)
    return features, table[target]
