"""Hit rates of the checks on planted faults, and false-alarm rates on clean cases.

    python -m gapscope_studies.checks.planted_faults results/checks/planted_faults.json --scale small

Thresholds were chosen on the scale "development" (seeds 0 and 1) and fixed before seeds from 1,001 were sampled.
Results are cached per unit, from which a stopped run resumes.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope.pools.jobs import run_cached
from gapscope_studies.checks import faults
from gapscope_studies.checks.faults import FAMILIES, IMAGES, TABLES, Data, build, draw
from gapscope_studies.checks.summary import summarize
from gapscope_studies.kit.provenance import commit

# scale -> first seed, number of seeds
SCALES = {"development": (0, 2), "small": (1001, 10)}
TRAINED = gs.TrainingSpec(epochs=30, learning_rate=0.05, momentum=0.9)
# tells that a network was trained, which its outputs hardly show
HISTORY = ({"epoch": 1, "train_loss": 1.0},)
SHORT = gs.TrainingSpec(epochs=10, learning_rate=0.001)


def _accuracy(network: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return float((network.eval()(data[0]).argmax(1) == data[1]).double().mean())


def _repeats(data: Data) -> bool:
    """Return whether 2 % of the samples are exact repeats."""
    return len(data[0]) - len(data[0].unique(dim=0)) >= 0.02 * len(data[0])


def _logistic_disagreement(data: Data) -> bool:
    """Return whether 10 % of labels have a probability < 0.1 by five-fold logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, cross_val_predict

    x, y = data[0].flatten(1).double().numpy(), data[1].numpy()
    model = LogisticRegression(max_iter=200, C=0.1)
    folds = KFold(5, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 200 iterations are enough for a baseline
        predicted = np.asarray(cross_val_predict(model, x, y, cv=folds, method="predict_proba"))
    return float((predicted[np.arange(len(y)), y] < 0.1).mean()) >= 0.1


def _falls(history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the training loss falls by a tenth between the last fifths of the epochs."""
    losses = [row["train_loss"] for row in history]
    k = max(2, len(losses) // 5)
    return sum(losses[-k:]) < 0.9 * sum(losses[-2 * k : -k])


def _case(
    code: str, kind: str, is_fault: bool, result: Any, baseline: bool | None = None
) -> dict[str, Any]:
    outcomes = {row["code"]: row["outcome"] for row in result.to_pandas().to_dict("records")}
    return {
        "code": code,
        "kind": kind,
        "fault": is_fault,
        "outcome": outcomes[code],
        "baseline": baseline,
    }


def _both(
    code: str, clean: Any, network: nn.Module | None, data: Data, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield a case without the fault and one with it."""
    yield _case(code, "planted", False, clean)
    yield _case(code, "planted", True, gs.check(network, data, only=[code], **options))


def data_cases(family: str, train: Data, seed: int) -> Iterator[dict[str, Any]]:
    """Yield faults of the data, checked with an untrained network."""
    generator, network = torch.Generator().manual_seed(seed), build(family, train, seed)
    repeated = faults.add_duplicates(train, generator, exact=seed % 2 == 0)
    for code, faulty, baseline in (
        ("GS101", repeated, _repeats),
        ("GS102", faults.flip_labels(train, generator), _logistic_disagreement),
    ):
        for data in (train, faulty):
            yield _case(
                code,
                "planted",
                data is faulty,
                gs.check(network, data, only=[code]),
                baseline(data),
            )
    for code, plant in (("GS104", faults.thin_out_class), ("GS105", faults.unscale)):
        yield from _both(
            code, gs.check(network, train, only=[code]), network, plant(train, generator)
        )


def untrained_cases(family: str, train: Data, seed: int) -> Iterator[dict[str, Any]]:
    """Yield faults of the network before training."""
    generator, network = torch.Generator().manual_seed(seed), build(family, train, seed)
    clean = gs.check(network, train, only=["GS201", "GS202", "GS204"], time_budget=None)
    yield from _both("GS201", clean, faults.rescale_weights(network, generator), train)
    if family == "batch norm":  # it removes the offset, so that nothing would be planted
        yield _case("GS202", "planted", False, clean)
    else:
        yield from _both("GS202", clean, network, (train[0] + 100 * train[0].std(), train[1]))
    yield from _both(
        "GS204", clean, faults.add_bottleneck(network, train[0], generator), train, time_budget=None
    )


def trained_cases(
    family: str, train: Data, double: Data, test: Data, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield faults of the training run and of the trained network."""
    generator = torch.Generator().manual_seed(seed)
    for kind, spec in (("trained", TRAINED), ("short", SHORT), ("noisy", TRAINED)):
        data = faults.flip_labels(train, generator) if kind == "noisy" else train
        network = build(family, train, seed)
        initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        monitor = None
        if kind != "short":
            monitor = gs.Monitor(
                data, ["loss"], every=3, n_samples=100, alarm="joint", max_time_fraction=None
            )
        history = gs.train(network, data, spec, seed=seed, on_epoch=monitor).history
        accuracy = _accuracy(network, test)
        result = gs.check(
            network,
            data,
            initial_state=initial,
            monitor=monitor,
            history=history,
            batch_size=50,
            time_budget=None,
        )
        if kind != "noisy":
            yield _case("GS302", kind, kind == "short", result, _falls(history))
            # test samples have clean labels
            yield from _worse_than_possible(kind, network, data, test, result)
        if kind != "short":
            yield _case("GS301", kind, kind == "noisy", result)
        if kind == "trained":
            options: dict[str, Any] = {
                "initial_state": initial,
                "batch_size": 50,
                "time_budget": None,
            }
            yield from _both(
                "GS403", result, faults.switch_off_units(network, generator), data, **options
            )
            wiggly = faults.Wiggly(network, data[0], generator)
            yield from _both("GS404", result, wiggly, data, history=HISTORY)
            if any(
                isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in network.modules()
            ):
                yield from _both("GS203", result, faults.age_statistics(network), data, **options)
            forecast = gs.check(network, data, only=["GS103"])
            bigger = build(family, double, seed)
            gs.train(bigger, double, spec, seed=seed)
            gain = _accuracy(bigger, test) - accuracy
            if gain >= 0.04 or gain <= 0.015:
                yield _case("GS103", "trained on twice the data", gain >= 0.04, forecast)


def structure_cases(name: str, data: Data, seed: int) -> Iterator[dict[str, Any]]:
    """Yield faults of single columns, of the order of rows, and of single classes; these need no network."""
    generator = torch.Generator().manual_seed(seed)
    faulty = [("GS109", faults.rare_class), ("GS108", faults.overlapping_windows)]
    if name in TABLES:
        faulty += [("GS107", faults.add_label_column), ("GS107", faults.add_counter)]
    for code, plant in faulty:
        yield from _both(code, gs.check(None, data, only=[code]), None, plant(data, generator))


def unlearned_cases(family: str, train: Data, seed: int) -> Iterator[dict[str, Any]]:
    """Yield networks that learned nothing of new data (GS106), and a layer that was not trained (GS303)."""
    generator = torch.Generator().manual_seed(seed)
    for kind, spec in (("trained", TRAINED), ("coin tosses", replace(TRAINED, epochs=100))):
        data = faults.toss_coins(train, generator) if kind == "coin tosses" else train
        network = build(family, data, seed)
        initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        history = gs.train(network, data, spec, seed=seed).history
        options: dict[str, Any] = {
            "history": history,
            "initial_state": initial,
            "time_budget": None,
        }
        # a network that did not fit coin tosses has memorized nothing
        if kind == "trained" or _accuracy(network, data) >= 0.9:
            result = gs.check(network, data, only=["GS106", "GS303"], **options)
            yield _case("GS106", kind, kind == "coin tosses", result)
            if kind == "trained":
                yield _case("GS303", kind, False, result)
                stuck = faults.train_without_first_layer(build(family, data, seed), data, seed)
                yield _case(
                    "GS303", "planted", True, gs.check(stuck, data, only=["GS303"], **options)
                )


def _worse_than_possible(
    kind: str, network: nn.Module, data: Data, test: Data, result: Any
) -> Iterator[dict[str, Any]]:
    """Yield faults of gap and accuracy, with a small hold-out as the baseline."""
    n, accuracy, train_accuracy = (
        len(data[0]) // 10,
        _accuracy(network, test),
        _accuracy(network, data),
    )
    hold_out = _accuracy(network, (test[0][:n], test[1][:n]))
    gap = train_accuracy - accuracy
    if gap >= 0.15 or gap <= 0.05:
        yield _case(
            "GS402",
            kind,
            gap >= 0.15,
            result,
            train_accuracy - hold_out >= max(0.03, 0.1 * hold_out),
        )
    best = max(row.score for row in gs.forecast_accuracy(None, data).rows)
    if accuracy <= best - 0.05 or accuracy >= best - 0.01:
        yield _case("GS401", kind, accuracy <= best - 0.05, result, hold_out <= best - 0.05)


def units(scale: str) -> Iterator[tuple[int, str, str]]:
    """Return seed, data set and family of every unit, seed by seed."""
    first, number = SCALES[scale]
    return itertools.product(range(first, first + number), IMAGES + TABLES, FAMILIES)


def run_unit(seed: int, name: str, family: str, n: int = faults.N) -> dict[str, Any]:
    """Return all cases of one unit with their CPU seconds."""
    start = time.process_time()
    double, test = draw(name, seed, 2 * n)
    train = (double[0][:n], double[1][:n])
    triple = draw(name, seed, 3 * n + 50)[0]
    parts = (
        data_cases(family, triple, seed),
        untrained_cases(family, train, seed),
        trained_cases(family, train, double, test, seed),
    )
    cases = [
        {"data": name, "family": family, "seed": seed, **case} for part in parts for case in part
    ]
    return {"cases": cases, "cpu_seconds": time.process_time() - start}


def run_structure(seed: int, name: str, n: int = faults.N) -> dict[str, Any]:
    """Return the cases of one data set that need no network, with their CPU seconds."""
    start = time.process_time()
    cases = list(structure_cases(name, draw(name, seed, 3 * n + 50)[0], seed))
    found = {"data": name, "family": "none", "seed": seed}
    return {"cases": [found | case for case in cases], "cpu_seconds": time.process_time() - start}


def run_unlearned(seed: int, name: str, family: str, n: int = faults.N) -> dict[str, Any]:
    """Return the cases of GS106 and GS303 of one unit, with their CPU seconds."""
    start = time.process_time()
    cases = [
        {"data": name, "family": family, "seed": seed, **c}
        for c in unlearned_cases(family, draw(name, seed, n)[0], seed)
    ]
    return {"cases": cases, "cpu_seconds": time.process_time() - start}


def _results(jobs: Mapping[str, Any], folder: Path, finished: bool) -> list[dict[str, Any]]:
    """Return the results of jobs, or only of those that are finished."""
    if finished:
        jobs = {name: job for name, job in jobs.items() if (folder / f"{name}.json").exists()}
    return list(run_cached(jobs, folder, workers=1).values())


def main() -> None:
    """Run the missing units, and write the summary of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--scale", choices=sorted(SCALES), default="small")
    parser.add_argument("--seeds", type=int, default=10, help="largest number of seeds")
    parser.add_argument(
        "--unlearned-seeds", type=int, default=10, help="the same for GS106 and GS303"
    )
    parser.add_argument(
        "--finished", action="store_true", help="summarize what is finished, run nothing"
    )
    parser.add_argument("--work", type=Path, default=Path("study-work/checks"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    first, number = SCALES[arguments.scale]
    plan = [
        unit for unit in units(arguments.scale) if unit[0] < first + min(number, arguments.seeds)
    ]
    work = arguments.work / arguments.scale
    jobs = {" ".join(map(str, unit)): partial(run_unit, *unit) for unit in plan}
    result = _results(jobs, work, arguments.finished)
    data_sets = dict.fromkeys((seed, name) for seed, name, _ in plan)
    jobs = {f"{seed} {name}": partial(run_structure, seed, name) for seed, name in data_sets}
    result += _results(jobs, arguments.work / f"{arguments.scale} structure", arguments.finished)
    unlearned = [unit for unit in plan if unit[0] < first + arguments.unlearned_seeds]
    jobs = {" ".join(map(str, unit)): partial(run_unlearned, *unit) for unit in unlearned}
    result += _results(jobs, arguments.work / f"{arguments.scale} unlearned", arguments.finished)
    cases = [case for unit in result for case in unit["cases"]]
    content = {
        "environment": environment(),
        "scale": arguments.scale,
        "samples": faults.N,
        "seeds": sorted({seed for seed, _, _ in plan}),
        "seeds of GS106 and GS303": sorted(
            {c["seed"] for c in cases if c["code"] in ("GS106", "GS303")}
        ),
        "cpu_seconds": sum(unit["cpu_seconds"] for unit in result),
        "thresholds": (
            "chosen on seeds 0 and 1 (scale development), fixed in this commit before the seeds above were drawn; "
            "seed 1000 is left out, because a smoke run had shown it before"
        ),
        "commit": commit(),
        "codes": summarize(cases),
    }
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.path, to_json(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
