"""Specs: ids, coercion, strict keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.base.specs import DataSpec, NetworkSpec, RunSpec, TrainingSpec, setting_paths


def test_equal_settings_have_equal_ids_however_they_were_written() -> None:
    written = RunSpec.from_dict(
        {"data": {"label_noise": 0, "name": "digits"}, "training": {"learning_rate": 0.1}}
    )
    assert written == RunSpec() and written.id == RunSpec().id and hash(written) == hash(RunSpec())
    assert (
        RunSpec(training=TrainingSpec(learning_rate=1)).id
        == RunSpec(training=TrainingSpec(learning_rate=1.0)).id
    )
    first, second = (
        RunSpec(network=NetworkSpec(options={"width_multiplier": value})) for value in (1, 1.0)
    )
    assert first == second and first.id == second.id


def test_ids_are_stable_across_versions() -> None:
    # of "{}": a new setting with a neutral default must not change it
    assert RunSpec().id == "44136fa355b3678a"
    assert RunSpec(seed=1).id == "a4bbadc1c78966d2"


@pytest.mark.thorough
@given(
    noise=st.floats(0, 1),
    seed=st.integers(0, 2**40),
    options=st.dictionaries(
        st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    ),
)
def test_a_spec_survives_plain_values(noise: float, seed: int, options: dict[str, Any]) -> None:
    spec = RunSpec(
        data=DataSpec(label_noise=noise), network=NetworkSpec(options=options), seed=seed
    )
    assert RunSpec.from_dict(spec.to_dict()) == spec
    assert RunSpec.from_dict(spec.to_dict(omit_defaults=True)).id == spec.id


def test_every_setting_changes_the_id() -> None:
    changed = {
        "data.name": "mnist", "data.options": {"a": 1}, "data.train_size": 5, "data.test_size": 5,
        "data.balanced": True, "data.blur_severity": 2, "data.label_noise": 0.5,
        "data.label_noise_may_keep_class": True, "data.target_noise": 1, "data.center_targets": True, "data.seed": 1,
        "data.pixels_averaged": 2, "normalization.kind": "none", "normalization.weight_norm": True,
        "normalization.only_in": "norm1", "normalization.population_samples": 9, "normalization.directions_std": 0.1,
        "network.name": "lenet5", "network.options": {"width": 3}, "network.initialization": "he_normal",
        "training.optimizer": "adam", "training.learning_rate": 1, "training.momentum": 0.5,
        "training.batch_size": 3, "training.epochs": 3, "training.schedule": "step", "training.schedule_factor": 0.5,
        "training.schedule_epochs": 3, "training.loss": {"name": "early_learning"},
            "training.penalties": [{"name": "weight"}], "training.gradient_clip": 1,
        "training.stop_at_train_loss": 0.1, "training.stop_epochs": 2, "training.precision": "mixed",
        "training.channels_last": True, "training.augmentation": "flip_shift_rotate", "seed": 1,
    }  # fmt: skip
    needs_others = {"training.nesterov", "normalization.emulated_size"}
    assert set(changed) | needs_others == set(setting_paths())
    ids = {RunSpec().replace({path: value}).id for path, value in changed.items()}
    assert len(ids | {RunSpec().id}) == len(changed) + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": {"lable_noise": 0.3}}, "no setting 'lable_noise'.*Did you mean 'label_noise'"),
        ({"data": {"label_noise": 1.5}}, r"data.label_noise must lie in \[0, 1\]; got 1.5"),
        ({"data": {"label_noise": float("nan")}}, "label_noise must be a finite number; got nan"),
        (
            {"network": {"options": {"width": float("nan")}}},
            "options.width must be a finite number; got nan",
        ),
        (
            {"network": {"options": {"a": [{"b": object}]}}},
            r"options.a.0.b must be a number, a string",
        ),
        ({"training": {"epochs": 2.5}}, "must be of type int; got 2.5"),
        (
            {"training": {"optimizer": "sdg"}},
            "must be one of 'sgd', 'adam'; got 'sdg'. Did you mean 'sgd'",
        ),
        ({"training": {"nesterov": True}}, "nesterov needs a positive momentum"),
        (
            {"training": {"optimizer": "adam", "momentum": 0.9}},
            "momentum must be 0 with optimizer 'adam'",
        ),
        ({"training": {"penalties": [{"nam": "weight"}]}}, r"penalties\[0\] has no setting 'nam'"),
        ({"data": 3}, "must be a table of settings; got 3"),
    ],
)
def test_wrong_settings_get_one_sentence(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RunSpec.from_dict(content)


def test_changes_are_named_by_their_path() -> None:
    assert RunSpec().replace({"network.options.width": 3}).network.options == {"width": 3}
    with pytest.raises(InvalidInput, match=r"Did you mean 'data.label_noise'"):
        RunSpec().replace({"dta.label_noise": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"kind": "gost"},
            "normalization.kind must be one of .*; got 'gost'. Did you mean 'ghost'",
        ),
        ({"kind": "ghost"}, "emulated_size must be the size of a ghost batch, 2 or more; got 0"),
        (
            {"emulated_size": 4},
            "emulated_size must be 0 for kind 'batch'; got 4. Use kind 'ghost' or 'population'",
        ),
        ({"population_samples": 1}, "normalization.population_samples must be"),
        ({"directions_std": 0}, "normalization.directions_std must be"),
    ],
)
def test_wrong_normalizations_get_one_sentence(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RunSpec.from_dict({"normalization": content})


def test_a_neutral_normalization_keeps_the_ids_of_older_runs() -> None:
    older = RunSpec(network=NetworkSpec(name="lenet5"), seed=3)
    written = older.to_dict()
    del written["normalization"]  # as a record of an older version has it
    assert RunSpec.from_dict(written) == older and RunSpec.from_dict(written).id == older.id
    assert older.replace({"normalization.kind": "batch"}).id == older.id
    assert older.replace({"normalization.kind": "none"}).id != older.id
