from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec
from gapscope.data.catalogue import load_dataset
from gapscope.data.prepare import pack_mask, prepare, unpack_mask
from gapscope.data.problem import Problem, split_indices


@given(mask=st.lists(st.booleans(), max_size=100))
def test_a_packed_mask_comes_back(mask: list[bool]) -> None:
    packed = pack_mask(torch.tensor(mask, dtype=torch.bool))
    assert unpack_mask(packed).tolist() == [i for i, marked in enumerate(mask) if marked]


def test_a_default_spec_changes_nothing() -> None:
    problem, facts = prepare(DataSpec(name="digits"))
    unchanged = load_dataset("digits")
    assert torch.equal(problem.train.inputs, unchanged.train.inputs)
    assert torch.equal(problem.train.y, unchanged.train.y)
    assert facts == {
        "train": {"available": 1297, "used": 1297, "balanced": False},
        "test": {"available": 500, "used": 500},
    }


@pytest.mark.thorough
def test_everything_at_once_on_real_images(data_root: Path) -> None:
    spec = DataSpec(
        name="mnist", train_size=3000, test_size=1000, blur_severity=1, label_noise=0.6, seed=3
    )
    problem, facts = prepare(spec, root=data_root)
    clean, _ = prepare(replace(spec, blur_severity=0, label_noise=0.0), root=data_root)
    wrong = problem.train.y != clean.train.y
    assert int(wrong.sum()) == 1800
    assert (
        unpack_mask(facts["label_noise"]["wrong_mask"]).tolist()
        == wrong.nonzero().flatten().tolist()
    )
    assert facts["motion_blur"] == {"severity": 1, "radius": 10, "sigma": 3.0, "images": 3000}
    assert (facts["train"]["used"], facts["test"]["used"], facts["train"]["available"]) == (
        3000,
        1000,
        60_000,
    )
    changed = (problem.train.inputs != clean.train.inputs).flatten(1).any(1)
    assert bool(changed.all())
    assert torch.equal(problem.test.inputs, clean.test.inputs)
    assert json.loads(json.dumps(facts)) == facts


def test_one_setting_does_not_change_the_randomness_of_another() -> None:
    spec = DataSpec(train_size=200, blur_severity=1, label_noise=0.3, seed=5)
    base, base_facts = prepare(spec)
    no_noise, _ = prepare(replace(spec, label_noise=0.0))
    more_noise, _ = prepare(replace(spec, label_noise=0.6))
    no_blur, facts = prepare(replace(spec, blur_severity=0))
    fewer, _ = prepare(replace(spec, train_size=50))
    assert torch.equal(base.train.inputs, no_noise.train.inputs)
    assert torch.equal(base.train.inputs[:50], fewer.train.inputs)
    assert torch.equal(base.train.y, no_blur.train.y)
    assert facts["label_noise"] == base_facts["label_noise"]
    wrong = base.train.y != no_noise.train.y
    assert torch.equal(more_noise.train.y[wrong], base.train.y[wrong])


def test_the_seed_changes_every_random_step() -> None:
    spec = DataSpec(train_size=200, test_size=100, blur_severity=1, label_noise=0.3)
    one, two = (prepare(replace(spec, seed=seed)) for seed in (1, 2))
    assert not torch.equal(one[0].train.inputs, two[0].train.inputs)
    assert not torch.equal(one[0].test.inputs, two[0].test.inputs)
    assert one[1]["label_noise"]["wrong_mask"] != two[1]["label_noise"]["wrong_mask"]
    assert torch.equal(prepare(replace(spec, seed=1))[0].train.inputs, one[0].train.inputs)


def test_a_resampled_label_may_stay_on_request() -> None:
    _, facts = prepare(DataSpec(label_noise=0.8, label_noise_may_keep_class=True))
    noise = facts["label_noise"]
    assert noise["drawn_again"] == round(0.8 * 1297) == 1038
    assert 880 < noise["wrong"] < 985, "934 are expected, standard deviation 10"
    assert len(unpack_mask(noise["wrong_mask"])) == noise["wrong"]


@pytest.mark.parametrize(("size", "used"), [(300, 300), (None, 1260)])
def test_balanced_subsets(size: int | None, used: int) -> None:
    problem, facts = prepare(DataSpec(train_size=size, balanced=True))
    assert torch.bincount(problem.train.y).tolist() == [used // 10] * 10
    assert facts["train"] == {"available": 1297, "used": used, "balanced": True}


def test_targets_are_centred_by_the_mean_of_the_training_targets(data_root: Path) -> None:
    uncentred, _ = prepare(
        DataSpec(name="concrete", target_noise=10.0, train_size=50), root=data_root
    )
    spec = DataSpec(name="concrete", target_noise=10.0, train_size=50, center_targets=True)
    result, facts = prepare(spec, root=data_root)
    mean = uncentred.train.y.mean(0)
    assert facts["center_targets"] == {"mean": mean.tolist()} and mean.abs().min() > 1
    assert torch.equal(result.train.y, uncentred.train.y - mean)
    assert torch.equal(result.test.y, uncentred.test.y - mean)
    with pytest.raises(InvalidInput, match="regression problem; 'digits'"):
        prepare(DataSpec(center_targets=True))


def test_averaged_pixels_keep_the_mean_of_both_splits() -> None:
    full, halved = (prepare(DataSpec(train_size=50, pixels_averaged=side))[0] for side in (1, 2))
    assert halved.input_shape == (1, 4, 4)
    for before, after in ((full.train, halved.train), (full.test, halved.test)):
        torch.testing.assert_close(after.inputs.mean((1, 2, 3)), before.inputs.mean((1, 2, 3)))
        assert float(after.inputs[0, 0, 1, 2]) == pytest.approx(
            float(before.inputs[0, 0, 2:4, 4:6].mean())
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train_size": 1298},
            "data.train_size must be at most 1,297, the samples of 'digits'; got 1,298",
        ),
        ({"test_size": 501}, "data.test_size must be at most 500"),
        (
            {"balanced": True, "train_size": 55},
            "must be a multiple of the number of classes, 10; got 55. Use 50",
        ),
        (
            {"name": "concrete", "balanced": True},
            "data.balanced needs a classification problem; 'concrete' is a regr",
        ),
        (
            {"name": "concrete", "blur_severity": 1},
            r"needs images .*'concrete' have shape \['n', 8\]. Set it to 0",
        ),
        (
            {"name": "two_circles", "pixels_averaged": 2},
            r"pixels_averaged needs images.*Set it to 1",
        ),
        (
            {"pixels_averaged": 9},
            "pixels_averaged must be at most the images' smaller side, 8; got 9",
        ),
        ({"name": "two_circles", "options": {"nois": 1}}, "Did you mean 'noise'"),
    ],
)
def test_incompatible_settings_are_rejected(data_root: Path, settings: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        prepare(DataSpec(**settings), root=data_root)


IMAGES = Samples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
TABLE = Samples(torch.zeros(4, 3), torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": "ranking"},
            "task of a Problem must be one of 'classification', 'regression'; got 'ranking'",
        ),
        ({"n_outputs": 0}, "n_outputs of a Problem"),
        ({"n_outputs": 2}, "Class labels must be smaller than the number of classes, 2; got 2"),
        ({"class_names": ("a",)}, "one class name per output, here 3; got 1"),
        (
            {"task": "regression"},
            r"training split of a regression problem needs .*\[n, K\]; got torch.int64",
        ),
        ({"test": TABLE}, r"must have the same shape; got \[1, 8, 8\] and \[3\]"),
        (
            {"test": Samples(IMAGES.inputs)},
            "test split of a classification problem needs targets; got inputs alone",
        ),
        (
            {"task": "regression", "train": TABLE, "test": TABLE},
            r"shape of the outputs, \[4, 3\]; got \[4, 2\]",
        ),
    ],
)
def test_incompatible_samples_are_rejected(change: dict, message: str) -> None:
    problem = Problem("toy", "classification", IMAGES, IMAGES, 3)
    with pytest.raises(InvalidInput, match=message):
        replace(problem, **change)


def test_the_split_is_numpys_frozen_permutation() -> None:
    train, test = split_indices(10, 0.3, 0)
    assert (test.tolist(), train.tolist()) == ([2, 8, 4], [9, 1, 6, 7, 3, 0, 5])
    with pytest.raises(InvalidInput, match="of the 2 samples"):
        split_indices(2, 0.1, 0)
