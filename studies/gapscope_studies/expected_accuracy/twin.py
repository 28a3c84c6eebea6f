"""What twins say of a training configuration, beside a hold-out, against the network that is trained on everything."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.expected_accuracy.pools import FLAT, TABLE, Configuration, Plan, TrainingConfig, in_random_order
from gapscope_studies.expected_accuracy.rows import plain, root_mean_square, shown
from gapscope_studies.expected_accuracy.runs import data_of, on_equally_noisy, score
from gapscope_studies.expected_accuracy.scale import behind
from gapscope_studies.kit.claims import measured
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

SMALL_CNN = tuple(
    TrainingConfig("small_cnn", {"width_multiplier": 0.25, "batch_norm": normed}) for normed in (False, True)
)
DESIGNS = ("half and quarter", "two halves and quarter", "five folds and quarter", "hold-out")
ALONE = "half alone"
JUDGED = (
    Plan("twin", {"digits": FLAT, "fashion_mnist": FLAT, "cifar10": FLAT}, (600, 900, 1200), (0.2, 0.4), 14, 11),
    Plan("twin_table", {"california_quartiles": TABLE}, (600, 1200), (0.2,), 12, 12),
    Plan("twin_small_cnn", {"fashion_mnist": SMALL_CNN}, (600,), (0.2, 0.4), 6, 13),
)
SMOKE = Plan("twin_smoke", {"digits": FLAT[-1:]}, (80,), (), 2, 0)


def _recipe(configuration: Configuration, outputs: int, x: Tensor, y: Tensor) -> nn.Module:
    """Train a configuration from fresh initial weights, sampled from the global stream."""
    seed = int(torch.randint(2**31, ()))
    recipe = configuration.recipe
    network = gs.build_network(
        recipe.network, input_shape=tuple(x.shape[1:]), n_outputs=outputs,
        generator=torch.Generator().manual_seed(derive_seed(seed, "initial weights")), **recipe.options,
    )  # fmt: skip
    gs.train(network, (x, y), gs.TrainingSpec.from_dict(dict(recipe.training)), seed=seed)
    return network


def judged(configuration: Configuration, kept: Path, root: str | None = None) -> dict[str, Any]:
    """Train the training configuration on everything and in all designs; JSON-serializable values."""
    train, test, outputs = data_of(configuration, root)
    recipe = partial(_recipe, configuration, outputs)
    assert train.targets is not None
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(configuration.seed, "the network itself"))
        network = recipe(train.inputs, train.targets)
    truth = on_equally_noisy(score(network, test), configuration.noise, outputs)
    found = configuration.facts() | {"truth": truth, "train_score": score(network, train)}
    for design in DESIGNS:
        one = gs.learning_curve(
            recipe, train, design=design, seed=configuration.seed, cache_dir=kept / configuration.name[:200]
        )
        raw = [item.score for item in one.trainings if item.name == "half"]
        found |= {f"{design}.{name}": getattr(one, name) for name in ("score", "low", "high", "cost")}
        found |= {f"{ALONE}.score": raw[0]} if raw else {}
    return found


def _errors(table: Table, name: str) -> np.ndarray:
    return (table[f"{name}.score"] - table["truth"]).to_numpy(dtype=float)


def _row(table: Table, design: str) -> dict[str, Any]:
    """Error and interval of one design on some networks; each has its own samples and seed."""
    errors = _errors(table, design)
    row: dict[str, Any] = {
        "design": design,
        "cost in trainings": 0.5,
        "RMSE": bootstrap(lambda rows: root_mean_square(errors[rows]), len(errors)),
        "bias": float(errors.mean()),
    }
    if design == ALONE:
        return row
    low, high, truth = (table[name].to_numpy(dtype=float) for name in (f"{design}.low", f"{design}.high", "truth"))
    return row | {
        "cost in trainings": float(table[f"{design}.cost"].mean()),
        "90 % interval, width": float((high - low).mean()),
        "covered": float(((low <= truth) & (truth <= high)).mean()),
    }


def _ahead_of_hold_out(table: Table, design: str) -> Interval:
    mine, rival = _errors(table, design), _errors(table, "hold-out")
    return bootstrap(lambda rows: root_mean_square(mine[rows]) - root_mean_square(rival[rows]), len(table))


def twins(setting: RunSettings) -> Outcome:
    """All designs on networks that nothing was chosen on."""
    plans = (SMOKE,) if setting.scale == "smoke" else JUDGED
    drawn = [item for plan in plans for item in in_random_order(plan)]
    jobs = {item.name[:200]: partial(judged, item, setting.work / "twins_kept", setting.data_root) for item in drawn}
    table: Table = pandas.DataFrame(setting.cached("twins", jobs).values())
    names = [*DESIGNS, ALONE]
    rows = [_row(table, name) for name in names]
    by_data = [{"data": str(data)} | _row(part, name) for data, part in table.groupby("data") for name in names]
    return Outcome(
        numbers={
            "designs": [plain(row) for row in rows],
            "by_data": [plain(row) for row in by_data],
            "networks": table.to_dict("records"),
        },
        claims=[
            measured(
                "ours", "half and quarter errs less than a 10 % hold-out, at less cost",
                "root mean squared error minus that of the hold-out", _ahead_of_hold_out(table, DESIGNS[0]),
                below=0.0, ours=True, unit="networks",
            compared=(), untrained="errors of estimates; networks of any accuracy count",
            )
        ],
        tables={
            "Designs": pandas.DataFrame([shown(row) for row in rows]),
            "By data set": pandas.DataFrame([shown(row) for row in by_data]),
        },
        verdict=(
            "The truth is the accuracy of one network trained on everything, on up to 2,000 test samples as noisy as "
            "the training labels: it has an error of about .01 of its own, which every row carries."
        ),
        **behind(setting, [item.facts() for item in drawn]),
    )  # fmt: skip
