"""The grids against the paper's appendix, the analysis on tables with known answers, and the study at smoke scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from gapscope.measures.unit_sparsity import unit_sparsity
from gapscope.pools.from_spec import prepare_data
from gapscope_studies.kit.pool import load_network
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.zhao2022 import fits
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    ZETA,
    error_claim,
    mean_gap,
    sign_claims,
    sparsity_model,
)
from gapscope_studies.zhao2022.fits import N_HELD_OUT, repeated_splits, ssr_claim, ssr_per_draw
from gapscope_studies.zhao2022.networks import first_pool, paper_grid, sparsity, varied_pool
from support.smoke_studies import SmokeStudy

PAPER, SMALL = (RunSettings(scale=scale, work=Path()) for scale in ("paper", "small"))
FRACTIONS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.fixture
def study(smoke: Callable[[str], SmokeStudy]) -> SmokeStudy:
    return smoke("zhao2022")


@pytest.fixture
def setting(study: SmokeStudy) -> RunSettings:
    """With the networks of the first pool trained and measured."""
    study.content("fig3ab")
    return study.setting


def test_the_paper_grid_is_that_of_its_appendix() -> None:
    specs = paper_grid(PAPER, "vgg")
    assert len({spec.id for spec in specs}) == 80
    assert sorted(Counter(spec.data.label_noise for spec in specs).values()) == [
        13,
        13,
        13,
        13,
        14,
        14,
    ]
    assert {spec.training.momentum for spec in specs} == {0.0, 0.5, 0.9}
    assert {spec.training.batch_size for spec in specs} == {128, 256, 512}
    assert {spec.network.options["dropout"] for spec in specs} == {0.0, 0.3, 0.5}
    assert {item.options["strength"] for spec in specs for item in spec.training.penalties} == {
        1e-4
    }
    norms = Counter(
        (spec.network.options["batch_norm"], spec.training.augmentation) for spec in specs
    )
    assert len(norms) == 4 and min(norms.values()) >= 14
    assert all(spec.data.name == "cifar100" and spec.data.train_size is None for spec in specs)
    assert all(spec.training.nesterov == (spec.training.momentum > 0) for spec in specs)


@pytest.mark.parametrize(
    ("setting", "pool"), [(PAPER, "vgg"), (PAPER, "mobilenet"), (PAPER, "resnet34"), (SMALL, "vgg")]
)
def test_plain_networks_differ_in_corruption_alone(setting: RunSettings, pool: str) -> None:
    plain = grids.plain_networks(paper_grid(setting, pool))
    assert [spec.data.label_noise for spec in plain] == FRACTIONS
    assert len({spec.replace({"data.label_noise": 0.0, "data.seed": 0}).id for spec in plain}) == 1
    assert not plain[0].network.options.get("batch_norm") and not plain[0].training.penalties


def test_the_narrow_vgg_has_images_of_its_own_for_every_network() -> None:
    assert [spec.data.seed for spec in paper_grid(SMALL, "vgg")] == [*range(48)]
    assert {spec.data.seed for spec in paper_grid(SMALL, "mobilenet")} == {0}


@pytest.mark.parametrize(
    ("setting", "pool"),
    [(PAPER, "digits"), (PAPER, "clothes"), (SMALL, "clothes"), (SMALL, "dense")],
)
def test_the_varied_pools_hold_what_the_paper_fixed(setting: RunSettings, pool: str) -> None:
    specs = varied_pool(setting, pool)
    assert (
        len({spec.id for spec in specs}) == len({spec.seed for spec in specs}) == len(specs) >= 38
    )
    assert len({spec.data.train_size for spec in specs if spec.data.label_noise == 0}) >= 3
    assert len({spec.training.epochs for spec in specs}) == 2
    assert Counter(spec.network.options["batch_norm"] for spec in specs)[True] == len(specs) / 2


def test_the_first_pool_holds_networks_of_one_size_trained_to_the_end() -> None:
    name, specs = first_pool(SMALL)
    assert name == "clothes" and {spec.id for spec in specs} <= {
        spec.id for spec in varied_pool(SMALL, "clothes")
    }
    assert (
        len(specs) == 122
        and len({(spec.data.train_size, spec.training.epochs) for spec in specs}) == 1
    )
    for draw in grids.repeats_of_plain(SMALL, specs):
        assert [spec.data.label_noise for spec in draw] == FRACTIONS
    assert first_pool(PAPER) == ("vgg", paper_grid(PAPER, "vgg"))


def test_models_lose_one_regularization_after_the_other() -> None:
    ways = {}
    for name, (spec,) in grids.models(PAPER).items():
        training, dropout = spec.training, spec.network.options["dropout"]
        ways[name] = (
            training.augmentation != "none",
            training.momentum > 0,
            dropout,
            bool(training.penalties),
        )
    assert ways == {
        "A": (True, True, 0.5, True),
        "B": (False, True, 0.5, True),
        "C": (False, False, 0.5, True),
        "D": (False, False, 0.3, True),
        "E": (False, False, 0.0, False),
    }


def made_up(n: int = 24, *, noise: float = 0.0, seed: int = 0) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    zeta, kappa = rng.random(n), rng.random(n)
    gap = 0.1 + 0.6 * zeta - 0.3 * kappa + noise * rng.standard_normal(n)
    return pandas.DataFrame({ZETA: zeta, KAPPA: kappa, "gap": gap, "train_loss": rng.random(n), "parameter_count": 7.0,
                             "corruption": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] * (n // 6) + [0.0] * (n % 6),
                             "train_accuracy": 1.0, "chance": 0.1, "curve": [[1.0]] * n})  # fmt: skip


@pytest.mark.thorough
def test_an_exact_relation_leaves_no_residual() -> None:
    result = repeated_splits(sparsity_model(), made_up(), 10)
    assert result["largest_ssr"] < 1e-12 and result["fit_pearson"] == pytest.approx(1)
    assert (result["n"], result["held_out"], len(result["ssr"])) == (24, 2, 10)
    assert result["rmse"]["mean gap"] > 0.1


def outcomes(table: pandas.DataFrame) -> list[str]:
    return [claim.outcome for claim in sign_claims("Fig. 3", table)]


@pytest.mark.thorough
def test_signs_are_those_of_the_paper_and_noise_levels_are_the_units() -> None:
    table = made_up(60)
    assert outcomes(table) == ["held", "held"]
    assert outcomes(table.assign(gap=-table["gap"])) == ["not held", "not held"]
    assert sign_claims("Fig. 3", table)[0].units == 6
    few = sign_claims("Fig. 3", table[table["corruption"] < 0.5])[0]
    assert few.outcome == "open" and "3 independent noise levels" in few.sentence
    lazy = table.assign(train_accuracy=numpy.where(table["corruption"] == 1.0, 0.12, 1.0))
    assert outcomes(lazy) == ["open", "open"]
    assert (
        "did not learn: 100% corrupted (training accuracy 0.12)"
        in sign_claims("Fig. 3", lazy)[0].sentence
    )


def test_a_model_is_evaluated_by_networks_that_it_did_not_see() -> None:
    table = made_up(60, noise=0.01)
    assert error_claim("Fig. 3", "it tells", table, sparsity_model(), mean_gap()).outcome == "held"
    assert (
        error_claim("Fig. 3", "it tells", table, mean_gap(), sparsity_model()).outcome == "not held"
    )


def test_subsets_by_hand() -> None:
    table = made_up(24).assign(
        fitted=[True] * 18 + [False] * 6,
        batch_norm=[False, True] * 12,
        corruption=[0.0, 0.0, 0.5] * 8,
        family=["a", "b"] * 12,
        recipe=["r"] * 24,
        **{
            name: numpy.arange(24.0)
            for name in fits.BASELINES
            if name not in ("train_loss", "parameter_count")
        },
    )
    sizes = {name: len(part) for name, part in fits.subsets(table).items()}
    assert sizes["all"] == 24 and sizes["fitted"] == 18 and sizes["not fitted"] == 6
    assert sizes["fitted, no batch norm"] == sizes["fitted, batch norm"] == 9
    assert sizes["fitted, clean labels"] == 12 and sizes["fitted, clean labels, no batch norm"] == 6
    by_family = fits.subsets(table)["fitted, from the mean of their family"]
    assert by_family.groupby("family")[ZETA].mean().abs().max() < 1e-12


@pytest.mark.thorough
def test_the_table_holds_the_networks_as_they_are(setting: RunSettings) -> None:
    pool, specs = first_pool(setting)
    table: Any = grids.measure_networks(setting, pool, specs)
    assert list(table.index) == [spec.id for spec in specs]
    assert table["batch_norm"].tolist() == [spec.network.options["batch_norm"] for spec in specs]
    assert (table["gap"] == table["train_accuracy"] - table["test_accuracy"]).all()
    assert (table["fitted"] == (table["train_accuracy"] >= 0.97)).all()
    network, problem = load_network(setting, pool, specs[0].id)
    result = unit_sparsity(network, problem.train.inputs, problem.train.y)
    assert table[ZETA].iloc[0] == result.zeta == sparsity(setting, pool, specs[0]).zeta
    right = (network(problem.train.inputs).argmax(1) == problem.train.y).double().mean()
    assert table["train_accuracy"].iloc[0] == pytest.approx(float(right))


def test_photographs_are_those_of_the_data_set(tmp_path: Path) -> None:
    setting = RunSettings(scale="smoke", work=tmp_path)
    (spec,) = next(iter(grids.models(setting).values()))
    problem, _ = prepare_data(spec, grids.use_photographs(setting).data_root)
    assert (len(problem.train), len(problem.test), problem.n_outputs) == (100, 100, 10)
    assert problem.train.inputs.shape[1:] == (3, 8, 8)


@pytest.mark.thorough
def test_the_curves_of_figure_1_are_those_of_the_networks(
    study: SmokeStudy, setting: RunSettings
) -> None:
    result = study.content("fig1")["numbers"]
    plain = grids.plain_networks(paper_grid(setting, "vgg"))
    here = sparsity(setting, "vgg", plain[0])
    assert result["clean"]["zeta"] == pytest.approx(here.class_zeta.tolist())
    units = [
        (a + 1 - b) / 2
        for a, b in zip(result["clean"]["n0/M"], result["clean"]["n0r/M"], strict=True)
    ]
    assert units == pytest.approx(result["clean"]["zeta"])


def test_a_sum_of_squares_is_that_of_refits_without_each_network() -> None:
    """Eight times the mean square of leave-one-out residuals, refitted one by one; of a draw the fit's own."""
    table = made_up(12, noise=0.2)
    gap, design = (
        table["gap"].to_numpy(),
        numpy.column_stack([table[[ZETA, KAPPA]], numpy.ones(12)]),
    )
    left_out = [
        gap[i]
        - design[i]
        @ numpy.linalg.lstsq(numpy.delete(design, i, 0), numpy.delete(gap, i), rcond=None)[0]
        for i in range(12)
    ]
    held_out = ssr_claim("", "", table, sparsity_model(), 0.023)
    assert held_out.value == pytest.approx(N_HELD_OUT * numpy.mean(numpy.square(left_out)))
    fitted = [float(numpy.linalg.lstsq(design[:n], gap[:n], rcond=None)[1][0]) for n in (12, 6)]
    assert ssr_per_draw(sparsity_model(), [table, table.head(6)]) == pytest.approx(fitted)
