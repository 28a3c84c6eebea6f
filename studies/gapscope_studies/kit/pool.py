"""Networks of a pool, cached functions of them, and what they replace of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gapscope.base.specs import RunSpec
from gapscope.pools import Pool
from gapscope.results.records import Record
from gapscope_studies.kit.claims import ComparisonArm, downsample_curve
from gapscope_studies.kit.study import Outcome, RunSettings

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem


def weights_of(setting: RunSettings, pool: str, spec_id: str) -> Path:
    """Return the path of the weights of a finished network."""
    return Pool(setting.work / pool).run_folder(spec_id) / "weights.safetensors"


def load_network(setting: RunSettings, pool: str, spec_id: str) -> tuple[nn.Module, Problem]:
    """Load a finished network in evaluation mode, with the data it was trained on."""
    from gapscope.pools.loading import load_with_initial

    network, _, problem = load_with_initial(weights_of(setting, pool, spec_id), setting.data_root)
    return network.eval(), problem


def _apply(function: Callable[..., Any], setting: RunSettings, pool: str, spec_id: str) -> Any:
    return function(*load_network(setting, pool, spec_id))


def evaluate_networks(
    setting: RunSettings, pool: str, function: Callable[[nn.Module, Problem], Mapping[str, Any]], ids: Iterable[str],
    name: str = "",
) -> pandas.DataFrame:  # fmt: skip
    """Apply a picklable function to finished networks. One row per id, cached under `name`."""
    import pandas

    name = name or getattr(function, "__name__", "") or "probed"
    rows = setting.cached(
        f"{pool}-{name}", {key: partial(_apply, function, setting, pool, key) for key in ids}
    )
    return pandas.DataFrame.from_dict(rows, orient="index")


def make_arm(
    name: str, records: Sequence[Record], n_classes: int, *, stopped: bool = False
) -> ComparisonArm:
    """Return one side of a claim, with the training fit of its networks (`stopped` by a rule)."""
    finished = [record for record in records if record.status == "finished"]
    accuracies = [record.scores["train_accuracy"] for record in finished]
    losses = [record.scores["train_loss"] for record in finished if "train_loss" in record.scores]
    training = [
        [float(row["train_loss"]) for row in record.history if "train_loss" in row]
        for record in finished
    ]
    return ComparisonArm(
        name=name,
        train_accuracy=median(accuracies) if accuracies else float("nan"),
        chance=1 / n_classes,
        train_loss=median(losses) if losses else None,
        curve=downsample_curve(
            [[float(row["test_accuracy"]) for row in record.history] for record in finished]
        ),
        loss_curve=downsample_curve(training),
        finished=True if stopped else None,
    )


def _distinct(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return one spec per data set, whatever its corruption."""
    names = ("name", "options", "train_size", "test_size", "pixels_averaged")
    distinct: dict[str, RunSpec] = {}
    for spec in specs:
        distinct.setdefault(str([getattr(spec.data, name) for name in names]), spec)
    return list(distinct.values())


def in_words(values: Iterable[Any]) -> str:
    """List the distinct values, or the range of more than four numbers."""
    distinct = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(distinct) > 4 and all(isinstance(value, int | float) for value in distinct):
        return f"{distinct[0]:g} to {distinct[-1]:g}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in distinct)


def scale_substitutions(
    setting: RunSettings, specs: Sequence[RunSpec], paper: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    """Return rows "what", "paper", "here" from the specs of a part and the paper's values."""
    from gapscope.pools.from_spec import prepare_data

    data = []
    for problem in (prepare_data(spec, setting.data_root)[0] for spec in _distinct(specs)):
        outputs = (
            f"{problem.n_outputs} {'classes' if problem.task == 'classification' else 'targets'}"
        )
        sizes = f"{len(problem.train):,} training and {len(problem.test):,} test samples"
        data.append(
            f"{problem.name}, {sizes}, {outputs}, {' x '.join(map(str, problem.input_shape))}"
        )
    values_of: dict[str, dict[str, list[Any]]] = {}  # of every option of every architecture
    for spec in specs:
        options = values_of.setdefault(spec.network.name, {})
        for name, value in spec.network.options.items():
            options.setdefault(name, []).append(value)
    networks = []
    for name, options in values_of.items():
        text = ", ".join(f"{option} {in_words(values)}" for option, values in options.items())
        networks.append(f"{name} ({text})" if text else name)
    paper = dict(paper or {})
    ours = {
        "data": "; ".join(data),
        "network": "; ".join(networks),
        "batch size": in_words(spec.training.batch_size for spec in specs),
        "epochs": in_words(spec.training.epochs for spec in specs),
        "networks": str(len({spec.id for spec in specs})),
        "seeds": str(len({spec.seed for spec in specs})),
    }
    rows = [
        {"what": what, "paper": paper.pop(what, ""), "here": value} for what, value in ours.items()
    ]
    return [*rows, *({"what": what, "paper": value, "here": ""} for what, value in paper.items())]


def digest(problem: Problem) -> str:
    """Return the first 16 digits of the SHA-256 of training and test samples."""
    content = hashlib.sha256()
    for tensor in (
        problem.train.inputs,
        problem.train.targets,
        problem.test.inputs,
        problem.test.targets,
    ):
        if tensor is not None:
            content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def data_hashes(setting: RunSettings, specs: Sequence[RunSpec]) -> dict[str, str]:
    """Return the `digest` of each data set, before its corruption."""
    from gapscope.data import prepare

    hashes = {}
    for spec in _distinct(specs):
        clean = spec.replace(
            {"data.label_noise": 0.0, "data.blur_severity": 0, "data.target_noise": 0.0}
        ).data
        problem, _ = prepare(clean, root=setting.data_root)
        hashes[f"{spec.data.name} {len(problem.train)}+{len(problem.test)}"] = digest(problem)
    return hashes


def outcome(
    setting: RunSettings, specs: Sequence[RunSpec], paper: Mapping[str, str] | None = None, *,
    also: Sequence[Mapping[str, str]] = (), **fields: Any,
) -> Outcome:  # fmt: skip
    """Return an outcome with scale, seeds and data of its specs. `also` are rows of the scale."""
    data, rows = data_hashes(setting, specs), [*scale_substitutions(setting, specs, paper), *also]
    return Outcome(
        **{"stands_in_for": rows, "seeds": sorted({spec.seed for spec in specs}), "data": data}
        | fields
    )
