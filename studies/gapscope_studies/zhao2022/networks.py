"""Networks of the study and their measures: the paper's grids, and pools that vary more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gapscope.base.specs import DataSpec, RunSpec
from gapscope.data import prepare
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY, UnitSparsity, unit_sparsity
from gapscope.pools.from_spec import prepare_data
from gapscope.results.records import Record, records_to_pandas
from gapscope.training.checkpoints import load_tensors
from gapscope_studies.kit.data import image_folder
from gapscope_studies.kit.pool import load_network, weights_of
from gapscope_studies.kit.study import RunSettings, Table

# the configuration whose networks differ in corruption alone (Figs. 1, 2, 5A, 6A): first values of other settings
PLAIN: dict[str, Any] = {"dropout": 0.0, "batch_norm": False, "l2": 0.0, "augmented": False}
DECAY = [{"name": "weight", "options": {"strength": 2.5e-4}}]
# appendix D: A is the configuration of Simonyan and Zisserman 2015; D has its dropout before the first fully connected
# layer alone in the paper, here before all
MODELS: dict[str, tuple[float, dict[str, Any]]] = {
    "A": (0.5, {"momentum": 0.9, "penalties": DECAY, "augmentation": "flip_shift_rotate"}),
    "B": (0.5, {"momentum": 0.9, "penalties": DECAY}),
    "C": (0.5, {"penalties": DECAY}),
    "D": (0.3, {"penalties": DECAY}),
    "E": (0.0, {}),
}


# --- the paper's grids


def stratified(
    recipes: Sequence[dict[str, Any]], n: int, balanced: Sequence[str], seed: int
) -> list[dict[str, Any]]:
    """Sample n training configurations, equally many per combination of `balanced`.

    >>> sample = stratified([{"a": a, "b": b} for a in (0, 1) for b in range(9)], 4, ["a"], 0)
    >>> sorted(recipe["a"] for recipe in sample)
    [0, 0, 1, 1]
    """
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for recipe in random.Random(seed).sample(list(recipes), len(recipes)):
        cells.setdefault(tuple(recipe[name] for name in balanced), []).append(recipe)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*cells.values()))
    return [recipe for recipe in in_turn if recipe is not None][:n]


def _changes(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the changed settings of a training configuration."""
    # Keras adds l2 times the sum of squares, biases included, as our penalty
    penalties = [{"name": "weight", "options": {"strength": recipe["l2"]}}] if recipe["l2"] else []
    changes = {
        f"network.options.{name}": recipe[name]
        for name in ("batch_norm", "dropout")
        if name in recipe
    }
    changes |= {
        f"training.{name}": recipe[name] for name in ("momentum", "learning_rate", "batch_size")
    }
    return changes | {
        "training.nesterov": recipe["momentum"] > 0,
        "training.augmentation": "flip_shift_rotate" if recipe["augmented"] else "none",
        "training.penalties": penalties,
    }


def paper_grid(setting: RunSettings, pool: str) -> list[RunSpec]:
    """Return the networks of Figs. 1 to 3 ("vgg"), 5 ("mobilenet") or 6 ("resnet34").

    Every fraction of corrupted labels has the plain training configuration and others that balance normalization and
    augmentation. A network of the grid may have `changes`, `axes` and images of its own (`own_images`).
    """
    content = setting.read(__file__)
    network, fractions = content["grid"]["networks"][pool], content["fractions"]
    axes = {**content["grid"]["axes"], **network.get("axes", {})}
    varied = {
        name: values
        for name, values in axes.items()
        if pool == "vgg" or name not in ("batch_norm", "dropout")
    }
    base = RunSpec.from_dict(content["grid"]["base"]).replace(
        {
            "network.name": network["name"],
            "network.options": network["options"],
            **network.get("changes", {}),
        }
    )
    recipes = [
        dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())
    ]
    plain = {name: PLAIN.get(name, values[0]) for name, values in varied.items()}
    remaining = [recipe for recipe in recipes if recipe != plain]
    balanced = [name for name in ("batch_norm", "augmented") if name in varied]
    result = []
    for place, fraction in enumerate(fractions):
        n_configurations = network["n"] // len(fractions) + (place < network["n"] % len(fractions))
        for number, recipe in enumerate(
            [plain, *stratified(remaining, n_configurations - 1, balanced, seed=place)]
        ):
            images = {"data.seed": len(result)} if network.get("own_images") else {}
            result.append(
                base.replace(
                    {"data.label_noise": fraction, "seed": number, **images, **_changes(recipe)}
                )
            )
    return result


def plain_networks(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return specs that differ from the first in corruption (seed, images) alone."""
    same = {"data.label_noise": 0.0, "data.seed": 0, "seed": 0}
    plain = specs[0].replace(same).id
    return sorted(
        (spec for spec in specs if spec.replace(same).id == plain),
        key=lambda spec: spec.data.label_noise,
    )


def draws_of(specs: Sequence[RunSpec], n: int) -> list[list[RunSpec]]:
    """Return the same networks `n` times, each time with other weights and training samples."""
    again = (
        [spec.replace({"seed": spec.seed + 1000 * k, "data.seed": k}) for spec in specs]
        for k in range(1, n)
    )
    return [list(specs), *again]


def repeats_of_plain(setting: RunSettings, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Return draws of the plain networks that have the scale's fractions of corrupted labels."""
    content = setting.read(__file__)
    plain = [
        spec for spec in plain_networks(specs) if spec.data.label_noise in content["fractions"]
    ]
    return draws_of(plain, content["plain_repeats"])


# --- pools that vary what the paper rest fixed: data, sizes, clean labels, networks that do not fit their data


def varied_pool(setting: RunSettings, name: str) -> list[RunSpec]:
    """Return a pool of small CNNs ("digits"), LeNets ("clothes") or dense networks ("dense").

    Varied are corruption, the number of clean samples, dropout and early ends, each with and without batch norm. The
    data are the same, but no two networks share initial weights. A pool may have `fractions` of its own.
    """
    content = setting.read(__file__)
    varied = content["varied"]
    pool = varied["pools"][name]
    noises = [{"data.label_noise": noise} for noise in pool.get("fractions", content["fractions"])]
    base = RunSpec.from_dict(varied["base"]).replace(pool["changes"])
    shapes = [{**shape, "batch_norm": norm} for shape in pool["shapes"] for norm in (False, True)]
    narrow = shapes[:2]
    crossed = [
        *itertools.product(shapes, noises),
        *itertools.product([{**option, "dropout": 0.2} for option in narrow], noises[1::3]),
        *itertools.product(narrow, [{"data.train_size": size} for size in pool["sizes"]]),
        *itertools.product(
            narrow, [noise | {"training.epochs": varied["early"]} for noise in noises[::2]]
        ),
    ]
    result = [
        base.replace({"network.options": options, **changes, "seed": number + 1000 * k})
        for k in range(varied["repeats"])
        for number, (options, changes) in enumerate(crossed)
    ]
    return result[: pool.get("first")]


def first_pool(setting: RunSettings) -> tuple[str, list[RunSpec]]:
    """Return name and networks of the pool of Figs. 1 to 3."""
    name = setting.read(__file__)["first_pool"]
    if name == "vgg":
        return name, paper_grid(setting, name)
    specs = varied_pool(setting, name)  # of which those of full training and common size
    common = (specs[0].data.train_size, specs[0].training.epochs)
    return name, [spec for spec in specs if (spec.data.train_size, spec.training.epochs) == common]


# --- photographs in folders


def models(setting: RunSettings) -> dict[str, list[RunSpec]]:
    """Return draws of models A to E of Table 1, each less regularized than the one before."""
    content = setting.read(__file__)["photographs"]
    base = RunSpec.from_dict(content["base"])
    result = {}
    for name, (dropout, changes) in MODELS.items():
        options = {"network.options": {**content["options"], "dropout": dropout}}
        spec = base.replace(options | {f"training.{key}": value for key, value in changes.items()})
        result[name] = [draw for (draw,) in draws_of([spec], content.get("draws", 1))]
    return result


def use_photographs(setting: RunSettings) -> RunSettings:
    """Return the setting whose data root holds `imagenet/train` and `imagenet/val`.

    Below paper scale a small data set is unpacked into folders in the work folder, once.
    """
    stand_in = setting.read(__file__)["photographs"].get("stand_in")
    if stand_in is None:
        return setting
    image_folder(
        setting.work / "imagenet", lambda: prepare(DataSpec(**stand_in), root=setting.data_root)[0]
    )
    return replace(setting, data_root=str(setting.work))


# --- measuring


def sparsity(setting: RunSettings, pool: str, spec: RunSpec) -> UnitSparsity:
    """Return zeta and kappa of the default layer with all curves, on all training samples."""
    network, problem = load_network(setting, pool, spec.id)
    return unit_sparsity(network, problem.train.inputs, problem.train.y)


def train_finished(
    setting: RunSettings, pool: str, specs: Sequence[RunSpec], **options: Any
) -> list[Record]:
    """Train and measure missing networks, and return finished records in order of the specs."""
    return [
        record for record in setting.train(pool, specs, **options) if record.status == "finished"
    ]


def measure_networks(setting: RunSettings, pool: str, specs: Sequence[RunSpec]) -> Table:
    """Return one row per finished network, by id: settings, scores, gap and readings.

    Further columns: `fitted` (the paper's condition), `family` (architecture and normalization), `chance` (accuracy of
    guessing), `curve` (test accuracies).
    """
    records = train_finished(setting, pool, specs)
    table: Table = records_to_pandas(records)
    tensors = [load_tensors(weights_of(setting, pool, record.id))[0] for record in records]
    norm = [any(name.endswith("running_mean") for name in weights) for weights in tensors]
    return table.assign(
        corruption=table["data.label_noise"].astype(float),
        batch_norm=norm,
        fitted=table["train_accuracy"] >= MIN_TRAIN_ACCURACY,
        family=table["network.name"]
        + [", batch norm" if value else ", no batch norm" for value in norm],
        chance=1 / prepare_data(specs[0], setting.data_root)[0].n_outputs,
        curve=[[float(row["test_accuracy"]) for row in record.history] for record in records],
    )
