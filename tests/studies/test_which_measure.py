from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
import torch

from gapscope.data import load_dataset
from gapscope.measures.registry import get_measure
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.which_measure.study import NUMBERS, held_out_samples, specs_of, taus_within
from support.smoke_studies import SmokeStudy


@pytest.mark.parametrize("pool", ["cifar10", "cifar100"])
def test_no_two_networks_share_configuration_seed_or_training_subset(
    pool: str, tmp_path: Path
) -> None:
    setting = RunSettings(scale="small", work=tmp_path)
    specs, noisy = specs_of(setting, pool), specs_of(setting, f"{pool}_noise")
    assert len(specs) >= 60 and {spec.data.name for spec in [*specs, *noisy]} == {pool}
    assert len({spec.replace({"seed": 0, "data.seed": 0}).id for spec in specs}) == len(specs)
    assert len({spec.seed for spec in [*specs, *noisy]}) == len([*specs, *noisy])
    assert all(spec.seed == spec.data.seed for spec in specs)
    assert {spec.data.label_noise for spec in specs} == {0.0} and {
        spec.data.label_noise for spec in noisy
    } == {0.2}


def test_every_number_of_the_protocol_is_one_that_its_measure_yields() -> None:
    for number in NUMBERS:
        measure, _, part = number.partition(".")
        assert (part or measure) in get_measure(measure).numbers, number


def test_what_is_held_out_is_everything_but_the_training_images() -> None:
    everything = load_dataset("digits")
    chosen = everything.train.subset(torch.arange(0, 100, 2))
    result = held_out_samples(chosen, everything)
    rows = {image.numpy().tobytes() for image in chosen.inputs}
    assert not rows & {image.numpy().tobytes() for image in result.inputs}
    twins = sum(image.numpy().tobytes() in rows for image in everything.train.inputs)
    assert len(result) == len(everything.test) + len(everything.train) - twins


def test_taus_are_computed_within_groups_that_differ_in_one_setting() -> None:
    rows = [(w, d, w + 10 * d, 3.0 * w - d) for w in (1, 2, 3) for d in (0, 1)]
    table = pandas.DataFrame(rows, columns=["hp.width", "hp.depth", "gap", "m.norm"])
    assert taus_within(table, "m.norm", "hp.width") == pytest.approx([1.0, 1.0])
    assert taus_within(table, "m.norm", "hp.depth") == pytest.approx([-1.0, -1.0, -1.0])


@pytest.mark.thorough
def test_a_pool_at_smoke_scale(smoke: Callable[[str], SmokeStudy]) -> None:
    content = smoke("which_measure").content("cifar10")
    rows = content["numbers"]["clean"]["rows"]
    assert {row["role"] for row in rows} == {"measure", "size", "random"}
    assert all("training configurations are too few" in row["why"] for row in rows)
    assert "With wrong labels in some networks" in content["verdict"]
    networks = content["numbers"]["runs"]
    assert {row["hp.wrong_labels"] for row in networks} == {0.0, 0.2}
    assert all(0 < row["gap"] < 1 for row in networks)


@pytest.mark.slow
def test_what_is_found_in_one_pool_is_evaluated_in_the_other(
    smoke: Callable[[str], SmokeStudy],
) -> None:
    content = smoke("which_measure").content("both")
    says = [row["says"] for row in content["claims"]]
    assert len(says) > 2 and "better than the size" in says[1]
    assert {row["verdict"] for row in content["numbers"]["measures"]} == {"no evidence"}
    assert all(abs(row["tau, CIFAR-10"]) <= 1 for row in content["numbers"]["single_settings"])
