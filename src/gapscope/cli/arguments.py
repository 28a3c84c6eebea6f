"""Arguments of the command line: networks, grids and CSV files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gapscope.base.errors import InvalidInput, describe_value, did_you_mean, join_names
from gapscope.base.files import as_word
from gapscope.base.specs import RunSpec
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.cli.factories import Returned, call_for_all, is_factory, split_returned
from gapscope.cli.options import NETWORK
from gapscope.cli.output import print_note
from gapscope.results.formatting import pluralize
from gapscope.results.records import RECORD, WEIGHTS, Record, flatten

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data.image_folder import ImageFolder
    from gapscope.pools.readings import RunOptions


TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl", ".ndjson")


def is_grid(source: Path) -> bool:
    """Return True for a TOML file."""
    return source.suffix.lower() == ".toml"


def is_table(source: Path) -> bool:
    """Return True for a table of samples, by the ending of its name."""
    name = source.name.lower()
    return name.removesuffix(".gz").endswith(TABLE_ENDINGS)


def call_for_network(source: Path, load: str | None) -> Returned | None:
    """Return what the user's function returns (None for a weights file of a pool).

    Args:
        source: `module:function`, or the path of a checkpoint.
        load: `module:function` that reads checkpoints, from --load.

    Raises:
        InvalidInput: The path is a folder or does not exist, or the function returns something else.
    """
    if is_factory(source):
        return call_for_all(source)
    if source.is_dir():
        raise InvalidInput(
            f"{source} must be {NETWORK}; it is a folder. Pass the weights of one network, such as "
            f"{source}/runs/ID/{WEIGHTS}."
        )
    if not source.exists():
        raise InvalidInput(f"{source} must be {NETWORK}; there is no such file or folder.")
    if load is None:
        return None
    return call_for_all(load, source)


def weights_of_run(source: Path) -> Path:
    """Return the weights file of the folder of a run, or of POOL/ID; other paths as they are.

    Args:
        source: Path that a command was given.

    Raises:
        InvalidInput: The run has a record and no weights.
    """
    for folder in (source, source.parent / "runs" / source.name):
        if (folder / WEIGHTS).is_file():
            return folder / WEIGHTS
        if (folder / RECORD).is_file():
            raise InvalidInput(
                f"{source} must be a run with weights; it has a record but no {WEIGHTS}. Delete {folder} and run the "
                "grid again to train it, or pass another network."
            )
    return source


def check_checkpoint(source: Path, load: str | None) -> None:
    """Raise InvalidInput if --load is passed with something else than the file of a checkpoint."""
    if load is not None and (is_factory(source) or source.is_dir() or is_grid(source)):
        raise InvalidInput(
            f"--load reads checkpoints; got {source}, which is none, and would not be loaded. Pass the path of the "
            "checkpoint in its place, or omit --load."
        )


def load_network(
    source: Path, data_root: str | None, load: str | None = None
) -> tuple[nn.Module, Any, Any]:
    """Return network, training data and initial weights (None if they are unknown).

    Args:
        source: Weights file of a pool, checkpoint, or `module:function`.
        data_root: Folder of the data sets.
        load: `module:function` that reads checkpoints.
    """
    from gapscope.pools.loading import load_with_initial

    source = weights_of_run(source)
    own = call_for_network(source, load)
    if own is not None:
        return own.network, own.data, own.options.get("initial_state")
    network, initial, problem = load_with_initial(source, data_root)
    return network, problem.train, initial


def record_from_argument(
    source: Path, options: RunOptions, family: str = "", load: str | None = None
) -> Record:
    """Return a record with the network's readings.

    Args:
        source: Weights file of a pool, checkpoint, or `module:function`.
        options: Measures and data root.
        family: Name of the architecture of a network that no pool stored.
        load: `module:function` that reads checkpoints.
    """
    from gapscope.base.samples import as_samples
    from gapscope.pools.loading import measure_stored_network, record_network

    source = weights_of_run(source)
    own = call_for_network(source, load)
    if own is None:
        return measure_stored_network(source, options)
    return record_network(
        own.network,
        as_samples(own.data).first(options.measure_samples),
        name=str(source),
        family=family,
        measures=options.measures,
        initial_state=own.options.get("initial_state"),
    )


def _label(source: Path) -> str:
    """Return the text of which names are ends: a path without suffix, or `module:function`."""
    if is_factory(source):
        return str(source)
    # all networks of pools have this name, in folders of their ids
    return str(source.parent if source.name == WEIGHTS else source.with_suffix(""))


def _ends(label: str) -> list[str]:
    """Return the ends of a path or of `module:function`, shortest first."""
    starts = [0, *(match.end() for match in re.finditer(r"[/\\:]", label))]
    return [label[start:] for start in reversed(starts)]


def distinct_names(sources: Sequence[Path]) -> list[str]:
    """Name networks by the shortest ends of their paths, or of `module:function`, that differ.

    Args:
        sources: Files or `module:function`, each once.

    >>> distinct_names([Path("a/run1/best.pt"), Path("a/run2/best.pt"), Path("net.pt"), Path("m:build")])
    ['run1/best', 'run2/best', 'net', 'build']
    """
    labels = [_label(source) for source in sources]
    if len(set(labels)) < len(labels):  # such as best.pt and best.bin
        labels = [str(source) for source in sources]
    counts = Counter(end for label in labels for end in _ends(label))
    return [next((end for end in _ends(label) if counts[end] == 1), label) for label in labels]


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
    rows = [flatten(spec.to_dict()) for spec in specs]
    keys = dict.fromkeys(key for row in rows for key in row)
    varied = [key for key in keys if len({repr(row.get(key)) for row in rows}) > 1]
    names = [
        ", ".join(f"{key.split('.')[-1]}={row[key]}" for key in varied if key in row)
        for row in rows
    ]
    return [name or spec.network.name for name, spec in zip(names, specs, strict=True)]


def split_target(
    table: pandas.DataFrame,
    target: str | None,
    path: Path,
    *,
    like: pandas.Series | None = None,
) -> tuple[pandas.DataFrame, pandas.Series]:
    """Return the other columns and the labels of a table that was read from a file.

    Args:
        table: Table of `read_table`.
        target: Column of the labels; None for the last one.
        path: Its file, for messages.
        like: Labels of another file, by whose rule these are read.

    Raises:
        InvalidInput: There is no such column or no other, or labels are missing.
    """
    from gapscope.base.batches import LABEL_NAMES
    from gapscope.base.class_names import MISSING_WORDS
    from gapscope.data.table_targets import as_targets
    from gapscope.data.tables import REPEATED, SEPARATORS

    names = [str(name) for name in table]
    if len(names) < 2 or not len(table):
        raise InvalidInput(
            f"{path} must have rows, a column of labels and at least one of features, separated by "
            f"{', '.join(SEPARATORS.values())}; got {pluralize(len(table), 'row')} of {names}."
        )
    if target is None:
        target = names[-1]
        usual = [name for name in names if name.casefold() in (*LABEL_NAMES, "class")]
        if usual and target not in usual and target not in table.attrs.get(REPEATED, {}):
            raise InvalidInput(
                f"The labels of {path} must be named: they are read from the last column, {target!r}, but there is "
                f"{join_names(usual)}. Pass --target {as_word(usual[0])}, or --target {as_word(target)}."
            )
        if like is None:
            print_note(f"The labels are column {target!r}, the last. --target names another.")
    if target not in table:
        hint = did_you_mean(target, names) or f" It has {join_names(names)}."
        raise InvalidInput(f"{path} has no column {target!r}.{hint}")
    repeated: Mapping[str, str] = table.attrs.get(REPEATED, {})
    if target in repeated:
        raise InvalidInput(
            f"{path} must have one column {repeated[target]!r} of labels; it has several. Rename or remove the others."
        )
    labels = table[target]
    if labels.isna().any():
        rows = (labels.index[labels.isna()] + 1).tolist()
        raise InvalidInput(
            f"{path} needs a label in every row; {len(rows)} of {len(labels)} are missing in column {target!r}: rows "
            f"{join_names(rows)}. Fill in these cells, or remove the rows."
        )
    for word in sorted(MISSING_WORDS) if labels.dtype == object else ():
        if n := int((labels == word).sum()):
            print_note(
                f"{target}: {word!r} is a class ({pluralize(n, 'sample')}), not a missing label."
            )
    labels, note = as_targets(labels, like)
    if note and like is None:
        print_note(note)
    return table.drop(columns=target), labels


@dataclass(frozen=True)
class LabelledTable:
    """Table of a file.

    Attributes:
        frame: All columns but that of the groups.
        target: Name of the column of the labels.
        inputs: The columns of features, as they are.
        labels: The labels or targets.
        groups: Group of each row; None without a column of them.
    """

    frame: pandas.DataFrame
    target: str
    inputs: pandas.DataFrame
    labels: pandas.Series
    groups: list[Any] | None

    @property
    def pair(self) -> tuple[pandas.DataFrame, pandas.Series]:
        """Features and labels."""
        return self.inputs, self.labels


def read_labelled_table(
    path: Path,
    target: str | None,
    *,
    groups: str | None = None,
    like: LabelledTable | tuple[Any, Any] | None = None,
) -> LabelledTable:
    """Read a table with labels; notes about its file are printed.

    Args:
        path: CSV, JSON or Parquet file (see `gapscope.data.tables.read_table`).
        target: Column of the labels; None for that of `like`, or the last one.
        groups: Column of groups, which is no feature; None for none.
        like: The first table, or a pair of a frame and labels, by whose rules a second one is read.

    Raises:
        InvalidInput: There is no such file or column.
    """
    import pandas

    from gapscope.data.tables import read_table, text_columns

    if not path.exists():
        raise InvalidInput(
            f"{path} must be a table (CSV, JSON lines, Parquet), a folder of pictures or module:function; there is no "
            "such file or folder."
        )
    first_labels = None
    as_text: tuple[str, ...] = ()
    if like is not None:
        first, first_labels = like.pair if isinstance(like, LabelledTable) else like
        as_text = text_columns(like.frame if isinstance(like, LabelledTable) else first)
        # the column of the training labels, wherever it stands in this file
        target = target or getattr(first_labels, "name", None)
    if not isinstance(first_labels, pandas.Series):
        first_labels = None
    frame, notes = read_table(path, as_text=as_text)
    for note in notes:
        print_note(note)
    frame, of_groups = split_groups(frame, groups, path, target)
    inputs, labels = split_target(frame, target, path, like=first_labels)
    return LabelledTable(frame, str(labels.name), inputs, labels, of_groups)


def read_second(path: Path, column: str | None, data: Any) -> Any:
    """Return the held-out samples of --test: a pair of a frame and labels, or pictures.

    Args:
        path: Table, or folder of pictures.
        column: Column of the labels, from --target; None for that of the training data.
        data: Training data: a table of a file, pictures, or what a function returned.

    Raises:
        InvalidInput: The training data are of no file and no frame, or the test data have another form.
    """
    from gapscope.base.foreign_data import as_frame
    from gapscope.data.image_folder import ImageFolder

    if isinstance(data, ImageFolder):
        return read_pictures(path, data.side, like=data)
    if isinstance(data, LabelledTable):
        return read_labelled_table(path, column, like=data).pair
    is_pair = is_list_or_tuple(data) and len(data) == 2
    inputs = as_frame(data[0] if is_pair else data)
    if not hasattr(inputs, "iloc"):
        raise InvalidInput(
            f"--test {path} is read like the training data, which must be a table, a frame or a folder of pictures; "
            f"got {describe_value(inputs)}, whose encoding is not known. Return the test data from the function: "
            "{'network': ..., 'data': ..., 'test': (inputs, targets)}."
        )
    if not is_pair:
        raise InvalidInput(
            f"--test {path} is read like the training data, whose column of labels is not known. Pass --target, or "
            "return (inputs, targets) as the data."
        )
    return read_labelled_table(path, column, like=(inputs, data[1])).pair


def read_source(
    source: Path, column: str | None, groups: str | None, side: int, test: Path | None = None
) -> tuple[Any, Any, list[Any] | None]:
    """Return network (None for data of a file), training data, and the group of each row.

    Args:
        source: `module:function`, folder of pictures, or table.
        column: Column of the labels, from --target.
        groups: Column of groups of a table; None for none.
        side: Height and width of pictures.
        test: Table of --test, whose column --target may name as well; None for none.

    Raises:
        BadParameter: There are groups without a table.
        InvalidInput: The source is a grid, or no such file.
    """
    if groups is not None and (is_factory(source) or is_grid(source) or source.is_dir()):
        raise typer.BadParameter("--groups names a column of a table; pass a table.")
    if is_factory(source):
        returned = call_for_all(source, what="network or None")
        return returned.network, split_returned(returned.data, column, source, test), None
    if source.is_dir():
        return None, read_pictures(source, side), None
    if is_grid(source):
        raise InvalidInput(
            f"{source} must be a table, module:function or a folder of pictures; it is a TOML grid, which this command "
            "does not read. Pass the samples."
        )
    table = read_labelled_table(source, column, groups=groups)
    return None, table.pair, table.groups


def split_groups(
    table: pandas.DataFrame, groups: str | None, path: Path, target: str | None
) -> tuple[pandas.DataFrame, list[Any] | None]:
    """Return a table without the column of groups, and the column; the table and None without a name.

    Args:
        table: Table with all columns.
        groups: Name of the column; None for none.
        path: File of the table, for the message.
        target: Column of the labels; None for the last one.

    Raises:
        InvalidInput: There is no such column, or it is that of the labels.
    """
    if groups is None:
        return table, None
    if groups == target:
        raise InvalidInput(
            f"--target and --groups name the same column, {groups!r}. Pass the column of the patients, authors or "
            "recordings as --groups."
        )
    if groups not in table:
        names = [str(name) for name in table]
        raise InvalidInput(f"{path} has no column {groups!r}.{did_you_mean(groups, names)}")
    return table.drop(columns=groups), table[groups].tolist()


def read_pictures(folder: Path, side: int, *, like: ImageFolder | None = None) -> ImageFolder:
    """Return the pictures of a folder with one folder per class; a note about their size is printed.

    Args:
        folder: Folder.
        side: Height and width in pixels.
        like: Pictures of another folder, whose class numbers are used.
    """
    from gapscope.data.image_folder import ImageFolder

    pictures = ImageFolder(folder, side, like.classes if like else None)
    if like is None:
        n = pluralize(len(pictures), "picture")
        classes = pluralize(len(pictures.classes), "class")
        print_note(
            f"{n} of {classes}, as {side} x {side} pixels. Features of a pretrained network say more: "
            "`gapscope.embed`."
        )
    return pictures
