"""Record of one network: JSON file and table row (torch is not imported)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import (
    DamagedFile,
    DamagedFileWarning,
    InvalidInput,
    UnreadableFile,
    describe_value,
)
from gapscope.base.files import check_file, read_json, read_json_lines, to_json, write_atomically
from gapscope.base.type_guards import is_dict, is_list_or_tuple, is_mapping
from gapscope.base.user_warnings import warn_user
from gapscope.results.readings import SCHEMA, Reading, Readings

if TYPE_CHECKING:
    import pandas

Status = Literal["finished", "diverged", "failed"]
# one part of a path: runs are folders of this name
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
RECORD = "record.json"  # written last; see `read_run`
WEIGHTS = "weights.safetensors"


def check_record_id(text: str) -> None:
    """Raise InvalidInput unless a run with this id has a folder of its own inside the pool."""
    if _ID.fullmatch(text) is None:
        raise InvalidInput(
            "The id of a record must be at most 100 letters, digits, points, hyphens and underscores, and begin with a "
            f"letter or digit; got {text[:60]!r}. Pass the id of a record that gapscope made."
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record of one network as JSON: `record.json`, with `history.jsonl`.

    Attributes:
        id: The run's id, the hash of its spec.
        spec: Spec as nested JSON-serializable values.
        status: "finished", "diverged" (non-finite loss), or "failed" (see the message).
        message: Reason why the network did not finish.
        scores: Final train_loss and test_loss (and train_accuracy, test_accuracy for classification), means over the
            split in evaluation mode; train scores use the training labels, corrupted ones included.
        corruption: Metadata of the corruption of the training data.
        readings: Readings of the network.
        measured_samples: Number of training samples of the readings; None if nothing was measured.
        unmeasured: Measure name -> why it has no value.
        history: One mapping per epoch.
        environment: Versions and machine.
        seconds: Wall time of training and measuring.
        epochs_trained: Number of finished epochs.
        stopped: Why training ended.
    """

    id: str
    spec: Mapping[str, Any]
    status: Status
    message: str = ""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    corruption: Mapping[str, Any] = field(default_factory=dict[str, Any])
    readings: Readings = field(default_factory=Readings)
    measured_samples: int | None = None
    unmeasured: Mapping[str, str] = field(default_factory=dict[str, str])
    history: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    epochs_trained: int = 0
    stopped: str = ""

    @property
    def gap_kind(self) -> str:
        """Kind of the gap: "accuracy" (train minus test) or "loss" (test minus train); empty without scores."""
        if "train_accuracy" in self.scores:
            return "accuracy"
        if "train_loss" in self.scores:
            return "loss"
        return ""

    @property
    def gap(self) -> float:
        """Generalization gap of the accuracy (train - test), else of the loss (test - train)."""
        if "test_loss" not in self.scores or "train_loss" not in self.scores:
            return math.nan
        if self.gap_kind == "accuracy":
            return self.scores["train_accuracy"] - self.scores["test_accuracy"]
        return self.scores["test_loss"] - self.scores["train_loss"]

    def missing_measures(self, names: Iterable[str]) -> list[str]:
        """Return the measures among `names` that were not run yet.

        Args:
            names: Names of measures.
        """
        done = {reading.measure for reading in self.readings} | set(self.unmeasured)
        return [name for name in names if name not in done]

    def write(self, folder: Path) -> None:
        """Write record.json into `folder` atomically (training writes the history).

        Args:
            folder: Folder of the run.
        """
        content: dict[str, Any] = {"schema": SCHEMA, **vars(self)}
        del content["history"]
        # at the end, as they are long
        content["readings"] = [asdict(reading) for reading in content.pop("readings")]
        write_atomically(folder / RECORD, to_json(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read the record of one run.

        Args:
            folder: Folder of the run.

        Raises:
            DamagedFile: Record or history are corrupted, or the file is no record.
            UnreadableFile: The record was written by a newer gapscope, or cannot be read.
        """
        path = folder / RECORD
        content = read_json(path, is_recreated=True)
        schema = content.get("schema") if is_dict(content) else None
        if not isinstance(schema, int):
            raise DamagedFile(
                f"{path} must be a gapscope record; it has no integer 'schema'. Is this a pool folder?"
            )
        if schema > SCHEMA:
            raise UnreadableFile(
                f"{path} must have schema {SCHEMA} or older; got {schema}, written by a newer gapscope. "
                "Upgrade gapscope, or use another folder."
            )
        missing = {"id", "spec", "status"} - set(content)
        if missing:
            raise DamagedFile(
                f"{path} must contain {', '.join(sorted(missing))}; it is corrupted. Delete it."
            )
        history = _read_history(folder)
        try:
            return cls(**_parse_fields(content), history=history)
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise DamagedFile(
                f"{path} must be a gapscope record; {error}. Delete it; the next run of the pool recreates it."
            ) from None


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "spec": dict,
    "message": str,
    "scores": dict,
    "corruption": dict,
    "readings": list,
    "measured_samples": (int, type(None)),
    "unmeasured": dict,
    "environment": dict,
    "epochs_trained": int,
    "stopped": str,
}


def _parse_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record from JSON (non-finite values are strings)."""
    names = {item.name for item in fields(Record)} - {"history"}
    content = {key: value for key, value in content.items() if key in names}
    for name, expected in _TYPES.items():
        if name in content and not isinstance(content[name], expected):
            raise ValueError(f"{name} is {str(content[name])[:60]!r}")
    check_record_id(content["id"])
    if content["status"] not in get_args(Status):
        raise ValueError(
            f"status is {str(content['status'])[:60]!r}, none of {', '.join(get_args(Status))}"
        )
    content["readings"] = Readings(
        Reading.from_dict(reading) for reading in content.get("readings", ())
    )
    content["scores"] = {key: float(value) for key, value in content.get("scores", {}).items()}
    has_gap = {"train_loss", "test_loss"} <= content["scores"].keys()
    accuracies = {"train_accuracy", "test_accuracy"} & content["scores"].keys()
    if has_gap and len(accuracies) == 1:
        raise ValueError("scores have one accuracy without the other")
    if not all(isinstance(reason, str) for reason in content.get("unmeasured", {}).values()):
        raise ValueError("unmeasured has a reason that is no text")
    for name, value in (
        ("seed", content["spec"].get("seed", 0)),
        ("epochs_trained", content.get("epochs_trained", 0)),
    ):
        if not _is_int64(value):
            raise ValueError(f"{name} is {str(value)[:60]!r}")
    content["seconds"] = float(content.get("seconds", 0.0))
    return content


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """Return True for a number as `to_json` writes it (text if not finite)."""
    return isinstance(value, float) or value in ("NaN", "Infinity", "-Infinity") or _is_int64(value)


def _read_history(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the epochs (none without a file)."""
    path = folder / "history.jsonl"
    rows = tuple(read_json_lines(path))
    for row in rows:
        invalid = next((name for name, value in row.items() if not _is_number(value)), None)
        if not isinstance(row.get("epoch"), int) or invalid is not None:
            raise DamagedFile(
                f"{path} must contain numbers for every epoch; '{invalid or 'epoch'}' is not a number. Delete it to "
                "read the record without its epochs."
            )
    return rows


def _check_weights(path: Path) -> None:
    """Raise DamagedFile if a file of weights is shorter or longer than its header says (it may be absent)."""
    if not path.exists():
        return
    check_file(path)
    try:
        with path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            n_bytes = path.stat().st_size - 8 - n_header
            if n_bytes < 0:
                raise ValueError("its header is incomplete")
            tensors = json.loads(file.read(n_header))
        tensors.pop("__metadata__", None)
        n_needed = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        if n_needed != n_bytes:
            raise ValueError(f"its tensors need {n_needed} bytes, it has {n_bytes}")
    except OSError as error:
        raise UnreadableFile(
            f"{path} must be a file that can be read; reading it failed: {error.strerror or error}. Correct it."
        ) from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            f"{path} must be a whole safetensors file; {error}. Delete it to keep the record without weights."
        ) from None


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings in one mapping, with paths such as "data.name" as keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if is_mapping(value):
            flat |= flatten(value, f"{name}.")
        elif is_list_or_tuple(value):
            flat[name] = to_json(value)
        else:
            flat[name] = value
    return flat


def warn_of_damage(folder: Path, n_read: int, errors: Sequence[str]) -> None:
    """Warn once about the runs that `read_run` refuses."""
    if errors:
        warn_user(
            f"{len(errors)} of {n_read + len(errors)} records of {folder} are damaged and skipped; the first: "
            f"{errors[0]}",
            DamagedFileWarning,
        )


def read_run(folder: Path) -> Record:
    """Read the record of a run of a pool: what this function accepts is done, for every command.

    Raises:
        DamagedFile: Record, history or weights are corrupted, or the record is of another network.
        UnreadableFile: A file cannot be read, or was written by a newer gapscope.
    """
    record = Record.read(folder)
    if record.id != folder.name:
        raise DamagedFile(f"{folder} must have the name of its network, {record.id}; is it a copy?")
    if record.status == "finished":
        _check_weights(folder / WEIGHTS)
    return record


def read_records(folder: Path) -> list[Record]:
    """Return all readable records of a pool's folder, sorted by id (one warning for the others)."""
    records: list[Record] = []
    errors: list[str] = []
    for path in sorted(folder.glob("runs/*/record.json")):
        try:
            records.append(read_run(path.parent))
        except UnreadableFile as error:
            errors.append(str(error))
    warn_of_damage(folder, len(records), errors)
    return records


def as_records(source: str | Path | Iterable[Record]) -> list[Record]:
    """Return the records of a pool, of its folder, or of a list.

    Raises:
        InvalidInput: A folder is no pool, or an item is no record.
    """
    if isinstance(source, str | Path):
        folder = Path(source)
        if not (folder / "runs").is_dir():
            raise InvalidInput(
                f"{folder} must be a pool folder; it holds no runs. Create one with: gapscope pool run."
            )
        return read_records(folder)
    records = list(source)
    for record in records:
        if not isinstance(record, Record):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                "Networks must be records, as record_network returns them, a pool, or its folder; got "
                f"{describe_value(record)}."
            )
    return records


@check_arguments
def records_to_pandas(records: str | Path | Iterable[Record]) -> pandas.DataFrame:
    """Return one row per network: settings, scores, gap and readings, indexed by id.

    A reading's column has the reading's name; its standard error, if any, is in `<name>.se`.

    Args:
        records: Records of the networks, one row each; a pool, or its folder.

    Raises:
        InvalidInput: One of them is no record.
    """
    import pandas

    rows = [record_to_row(record) for record in as_records(records)]
    if not rows:
        return pandas.DataFrame(columns=["status", "gap"], index=pandas.Index([], name="id"))
    return pandas.DataFrame(rows).set_index("id")


def record_to_row(record: Record) -> dict[str, Any]:
    """Return one row of `records_to_pandas` as a mapping, with the run's id."""
    row: dict[str, Any] = {"id": record.id, "status": record.status, **flatten(record.spec)}
    row |= dict(record.scores) | {"gap": record.gap, "gap_kind": record.gap_kind}
    for reading in record.readings:
        row[reading.name] = reading.value
        if reading.standard_error is not None:
            row[f"{reading.name}.se"] = reading.standard_error
    return row | {"epochs_trained": record.epochs_trained, "seconds": record.seconds}
