"""Networks of a grid as a table, cached functions of them, and networks they stand in for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import GapscopeError
from gapscope.base.specs import RunSpec
from gapscope.pools import Pool
from gapscope.results.records import Record, records_to_pandas
from gapscope_studies.kit.claims import ComparisonArm, downsample_curve
from gapscope_studies.kit.study import Outcome, RunSettings

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem


def networks(setting: RunSettings, pool: str, grid: Iterable[RunSpec], **options: Any) -> pandas.DataFrame:
    """Train missing networks of a grid, and return a table of the finished ones.

    It has a row per network, by id, with settings, scores, gap and readings.
    """
    records = setting.train(pool, list(grid), **options)
    kept = [record for record in records if record.status == "finished"]
    if not kept:
        raise GapscopeError(f"A network of {pool} must finish; none did. The first one: {records[0].message}.")
    return records_to_pandas(kept)


def weights_of(setting: RunSettings, pool: str, spec_id: str) -> Path:
    """Return where a pool keeps the weights of a finished network."""
    return Pool(setting.work / pool).run_folder(spec_id) / "weights.safetensors"


def load_network(setting: RunSettings, pool: str, spec_id: str) -> tuple[nn.Module, Problem]:
    """A finished network in evaluation mode, with the data it was trained on."""
    from gapscope.pools.loading import load_with_initial

    network, _, problem = load_with_initial(weights_of(setting, pool, spec_id), setting.data_root)
    return network.eval(), problem


def _probe(function: Callable[..., Any], setting: RunSettings, pool: str, spec_id: str) -> Any:
    return function(*load_network(setting, pool, spec_id))


def evaluate_networks(
    setting: RunSettings, pool: str, function: Callable[[nn.Module, Problem], Mapping[str, Any]], ids: Iterable[str],
    name: str = "",
) -> pandas.DataFrame:  # fmt: skip
    """Apply a picklable function to finished networks. One row per id, cached under `name`."""
    import pandas

    where = name or getattr(function, "__name__", "") or "probed"
    answers = setting.cached(f"{pool}-{where}", {key: partial(_probe, function, setting, pool, key) for key in ids})
    return pandas.DataFrame.from_dict(answers, orient="index")


def make_arm(
    name: str, records: Sequence[Record], n_classes: int, *, score: str = "test_accuracy", stopped: bool = False
) -> ComparisonArm:
    """Return one side of a claim, with the training fit of its networks.

    `stopped` is for networks whose training was ended by a stop rule.
    """
    ended = [record for record in records if record.status == "finished"]
    accuracies = [record.scores["train_accuracy"] for record in ended]
    losses = [record.scores["train_loss"] for record in ended if "train_loss" in record.scores]
    training = [[float(row["train_loss"]) for row in record.history if "train_loss" in row] for record in ended]
    curves = [[float(row[score]) for row in record.history] for record in ended]
    return ComparisonArm(
        name=name,
        train_accuracy=median(accuracies) if accuracies else float("nan"),
        chance=1 / n_classes,
        train_loss=median(losses) if losses else None,
        curve=downsample_curve(curves),
        loss_curve=downsample_curve(training),
        falling=score.endswith("loss"),
        finished=True if stopped else None,
    )


def _distinct(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """One spec for each way of taking data. How they are corrupted does not count."""
    seen = {}
    for spec in specs:
        facts = (spec.data.name, str(spec.data.options), spec.data.train_size, spec.data.test_size,
                 spec.data.pixels_averaged)  # fmt: skip
        seen.setdefault(facts, spec)
    return list(seen.values())


def in_words(values: Iterable[Any]) -> str:
    """Distinct values, the range of many numbers."""
    result = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(result) > 4 and all(isinstance(value, int | float) for value in result):
        return f"{result[0]:g} to {result[-1]:g}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in result)


def scale_substitutions(
    setting: RunSettings, specs: Sequence[RunSpec], paper: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    """Rows "what", "paper", "here", generated from all specs of a part.

    `paper` is what the paper had of "data", "network", "batch size", "epochs", "networks", "seeds"; further entries are
    rows of their own.
    """
    from gapscope.pools.from_spec import prepared

    data = []
    for problem in (prepared(spec, setting.data_root)[0] for spec in _distinct(specs)):
        outputs = f"{problem.n_outputs} {'classes' if problem.task == 'classification' else 'targets'}"
        sizes = f"{len(problem.train):,} training and {len(problem.test):,} test samples"
        data.append(f"{problem.name}, {sizes}, {outputs}, {' x '.join(map(str, problem.input_shape))}")
    options: dict[str, dict[str, list[Any]]] = {}  # of every architecture, with all their values
    for spec in specs:
        of_network = options.setdefault(spec.network.name, {})
        for name, value in spec.network.options.items():
            of_network.setdefault(name, []).append(value)
    network = [
        name + (f" ({', '.join(f'{key} {in_words(values)}' for key, values in of_network.items())})" * bool(of_network))
        for name, of_network in options.items()
    ]
    paper = dict(paper or {})
    here = {
        "data": "; ".join(data),
        "network": "; ".join(network),
        "batch size": in_words(spec.training.batch_size for spec in specs),
        "epochs": in_words(spec.training.epochs for spec in specs),
        "networks": str(len({spec.id for spec in specs})),
        "seeds": str(len({spec.seed for spec in specs})),
    }
    rows = [{"what": what, "paper": paper.pop(what, ""), "here": value} for what, value in here.items()]
    return [*rows, *({"what": what, "paper": value, "here": ""} for what, value in paper.items())]


def digest(problem: Problem) -> str:
    """First 16 digits of the SHA-256 of a problem's training and test samples."""
    result = hashlib.sha256()
    for tensor in (problem.train.inputs, problem.train.targets, problem.test.inputs, problem.test.targets):
        if tensor is not None:
            result.update(tensor.contiguous().numpy().tobytes())
    return result.hexdigest()[:16]


def data_hashes(setting: RunSettings, specs: Sequence[RunSpec]) -> dict[str, str]:
    """Return hashes of the training and test samples by data set, before noise.

    They are the first 16 digits of the SHA-256.
    """
    from gapscope.data import prepare

    result = {}
    for spec in _distinct(specs):
        clean = spec.replace({"data.label_noise": 0.0, "data.blur_severity": 0, "data.target_noise": 0.0}).data
        problem, _ = prepare(clean, root=setting.data_root)
        result[f"{spec.data.name} {len(problem.train)}+{len(problem.test)}"] = digest(problem)
    return result


def outcome(
    setting: RunSettings, specs: Sequence[RunSpec], paper: Mapping[str, str] | None = None, *,
    also: Sequence[Mapping[str, str]] = (), **more: Any,
) -> Outcome:  # fmt: skip
    """Return an outcome with its networks: paper networks they stand in for, seeds, data.

    `also` are further rows of networks they stand in for.
    """
    facts = {"seeds": sorted({spec.seed for spec in specs}), "data": data_hashes(setting, specs)}
    return Outcome(stands_in_for=[*scale_substitutions(setting, specs, paper), *also], **{**facts, **more})
