"""The guard is fed every bad case; claims survive their JSON; sentences are made of what they say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gapscope.base.files import to_json
from gapscope_studies.kit.claims import (
    CANNOT,
    HELD,
    NOT_HELD,
    NOT_RUN,
    OPEN,
    REGULARIZED,
    Claim,
    ComparisonArm,
    cannot_run,
    claim,
    counts,
    downsample_curve,
    has_flattened,
    identity,
    not_run,
    relation,
)
from gapscope_studies.kit.page import CLAIM_COLUMNS, claim_row
from gapscope_studies.kit.statistics import pearson

RISES = [0.10, 0.12, 0.09, 0.11, 0.13, 0.08, 0.10]
FITTED = ComparisonArm(name="BN", train_accuracy=0.98, chance=0.1, finished=True)
UNKNOWN = replace(FITTED, train_accuracy=None)
LOSS = replace(FITTED, train_loss=0.0007), replace(FITTED, name="BN 16", train_loss=0.43)
OPPOSITE = "the opposite, or out of the claimed range"


def grows(values: list[float] | None = None, **more: Any) -> Claim:
    return claim(
        "Fig. 2f", "validation loss grows with the batch size", "slope a doubling", values or RISES,
        **{"above": 0.0, "compared": (FITTED,), **more},
    )  # fmt: skip


def arm(name: str, accuracy: float, **more: Any) -> ComparisonArm:
    return replace(FITTED, name=name, train_accuracy=accuracy, **more)


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        ({}, HELD, ""),
        ({"values": [-value for value in RISES]}, NOT_HELD, OPPOSITE),
        ({"values": [-0.3, 0.4, 0.2, -0.1, 0.3, -0.2, 0.1]}, OPEN, "the interval holds both answers"),
        # training accuracy unknown: the loss counts; guessing is log 10 = 2.30
        ({"compared": (FITTED, UNKNOWN)}, OPEN, "no training accuracy or loss was kept of BN"),
        ({"compared": (FITTED, replace(UNKNOWN, train_loss=0.5))}, HELD, ""),
        ({"compared": (FITTED, replace(UNKNOWN, train_loss=2.29))}, OPEN, "did not learn"),
        # unequal training, with and without a reason for it
        ({"compared": (FITTED, arm("BN 128", 0.36))}, OPEN,
         "did not learn alike: training accuracy 0.36 (BN 128) against 0.98 (BN)"),
        ({"compared": (FITTED, arm("BN 128", 0.36)), **REGULARIZED}, HELD, ""),
        ({"compared": (FITTED, arm("BN 128", 0.36)), "reach": math.inf}, OPEN, ""),
        ({"compared": (FITTED, arm("BN 128", 0.9))}, HELD, ""),
        ({"compared": LOSS}, OPEN, "did not learn alike: training loss 0.0007 (BN) against 0.43 (BN 16)"),
        ({"compared": [replace(one, chance=0.0) for one in LOSS]}, HELD, ""),  # regression
        ({"compared": (FITTED, arm("Loss gradient", 0.98, failed="in 2 of 40 scenarios"))}, OPEN,
         "did not learn: Loss gradient in 2 of 40 scenarios"),
        # no networks, and what stands in their place
        ({"compared": ()}, OPEN, "no networks are named for the guard"),
        ({"compared": (), "untrained": "simulated students"}, HELD, ""),
        *(({"values": RISES[:n]}, OPEN, f"{n} independent seeds, fewer than 6") for n in (1, 2, 5)),
        ({"values": RISES[:6]}, HELD, ""),
    ],
)  # fmt: skip
def test_the_guard_and_the_interval_decide(
    fields: dict[str, Any], outcome: str, reason: str
) -> None:
    result = grows(**fields)
    assert result.outcome == outcome and result.verdict[1].startswith(reason)
    assert Claim.from_dict(json.loads(to_json(result.to_dict()))) == result


@pytest.mark.parametrize("accuracy", [0.1, 0.109, 0.149, 0.05, math.nan])
def test_a_network_that_did_not_learn_leaves_it_open(accuracy: float) -> None:
    lazy = arm("WN + dropout", accuracy)
    for values in (RISES, [-value for value in RISES]):  # neither answer is believed
        outcome, reason = grows(values, compared=(FITTED, lazy)).verdict
        assert outcome == OPEN and reason.startswith(
            f"did not learn: WN + dropout (training accuracy {accuracy:.2f})"
        )
    several = grows(RISES[:3], compared=(replace(lazy, finished=False),))
    assert several.verdict[1].count(";") == 2  # all doubts are named


def test_the_end_of_training_is_evaluated_on_the_training_loss() -> None:
    falls, flat = (
        tuple(1 - 0.02 * i for i in range(40)),
        (*(1 - 0.02 * i for i in range(30)), *[0.4] * 10),
    )
    curved = ComparisonArm(name="BN", train_accuracy=0.9, chance=0.1, curve=flat, falling=True)
    assert curved.done is True
    assert (
        replace(curved, loss_curve=falls).done is False
        and replace(curved, loss_curve=flat).done is True
    )
    rising = replace(curved, curve=tuple(reversed(falls)))
    assert rising.done is None and replace(rising, train_accuracy=0.99).done is True


def test_a_stored_curve_is_evaluated_and_no_curve_is_no_verdict() -> None:
    rising = [0.1 + 0.02 * i for i in range(40)]
    flat = [*rising, *[0.88] * 20]
    for curve, outcome, reason in (
        (downsample_curve([flat]), HELD, ""), (downsample_curve([rising]), OPEN, "not finished: BN"),
        ((), OPEN, "no curve of the training loss was kept of BN"),
    ):  # fmt: skip
        result = grows(
            compared=(ComparisonArm(name="BN", train_accuracy=0.9, chance=0.1, curve=curve),)
        )
        assert result.outcome == outcome and result.verdict[1].startswith(reason)
        read = Claim.from_dict(json.loads(to_json(result.to_dict())))
        assert read == result and read.verdict == result.verdict


def test_networks_that_share_a_cluster_count_once() -> None:
    values = [1.0] * 6 + [1.1] * 6
    two = grows(values, clusters=["a"] * 6 + ["b"] * 6, unit="training subsets")
    assert two.units == 2 and two.verdict == (OPEN, "2 independent training subsets, fewer than 6")
    assert grows(values).outcome == HELD


def test_a_reversed_sign_is_not_agreement_in_size() -> None:
    # zhao2022, Fig. 4: the paper's kappa falls with the gap (-.967), ours rises (.95)
    x = np.arange(12.0)
    guard: Any = {"paper": -0.967, "compared": (), "untrained": "numbers"}
    kappa = relation(
        "Fig. 4", "kappa falls with the gap", "Pearson", pearson, x, x + np.sin(x), **guard
    )
    assert kappa.value > 0.9 and kappa.verdict == (NOT_HELD, OPPOSITE)
    assert (
        relation("Fig. 4", "it falls", "Pearson", pearson, x, -x - np.sin(x), **guard).outcome
        == HELD
    )


@pytest.mark.parametrize(
    ("paper", "verdict"),
    [
        (0.1, (HELD, "")),
        (0.19, (HELD, "")),
        (1.0, (NOT_HELD, "the sign is right, the size 0.1 of the paper's")),
        (0.21, (OPEN, "the sign is right, the interval of the size holds both answers")),
        (-0.1, (NOT_HELD, OPPOSITE)),
    ],
)
def test_size_is_evaluated_together_with_sign(paper: float, verdict: tuple[str, str]) -> None:
    values = [0.09, 0.11, 0.1, 0.08, 0.12, 0.1, 0.1]
    assert (
        claim(
            "Table 1", "so much", "lead", values, paper=paper, compared=(), untrained="numbers"
        ).verdict
        == verdict
    )


def test_two_clusters_far_apart_are_two_units() -> None:
    # forouzesh2021, Fig. 1: .9996 over two clusters nine decades apart
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 0.1, 7), rng.normal(9, 0.1, 7)])
    y = np.concatenate([rng.normal(0, 0.1, 7), rng.normal(9, 0.1, 7)])
    groups = ["Xavier"] * 7 + ["standard normal"] * 7
    guard: Any = {"above": 0.5, "compared": (), "untrained": "numbers"}
    assert relation("Fig. 1", "linear", "Pearson", pearson, x, y, **guard).outcome == HELD
    by_group = relation("Fig. 1", "linear", "Pearson", pearson, x, y, clusters=groups, **guard)
    assert by_group.verdict == (OPEN, "2 independent clusters, fewer than 6")


def test_computed_numbers_need_no_units() -> None:
    assert (
        identity("Prop. 4", "the largest rate grows", "difference", 0.5, above=0.0).outcome == HELD
    )
    assert identity("Prop. 4", "by 4 zeta", "difference", 0.5, paper=1.1).verdict[0] == NOT_HELD
    assert (
        identity("Prop. 4", "the largest rate grows", "difference", math.nan, above=0.0).outcome
        == OPEN
    )


def test_what_was_not_run_names_why() -> None:
    assert not_run("Sec. 2.1", "kurtosis falls", "no part").verdict == (NOT_RUN, "no part")
    gone = cannot_run("Fig. 3", "on ImageNet", "the data are not here")
    assert gone.verdict == (CANNOT, "the data are not here")
    assert gone.sentence == "Fig. 3: on ImageNet: cannot be run here (the data are not here)."


def test_a_claim_survives_its_json_and_is_evaluated_again() -> None:
    for one in (
        grows(RISES[:1]),
        grows(paper=0.1, reach=0.2),
        not_run("a", "b", "c"),
        grows(ours=True),
    ):
        content = json.loads(to_json(one.to_dict()))
        assert (content["outcome"], content["reason"]) == one.verdict
        assert Claim.from_dict(content) == one or math.isnan(one.value)
        assert Claim.from_dict(content | {"outcome": "held"}).verdict == one.verdict


def test_sentences_are_made_of_what_the_claim_holds() -> None:
    assert grows(paper=0.2).sentence == (
        "Fig. 2f: validation loss grows with the batch size: held; slope a doubling 0.104 [0.0884, 0.12], 7 seeds; "
        "the paper 0.2."
    )
    assert "open (2 independent seeds, fewer than 6)" in grows(RISES[:2]).sentence
    row = dict(zip(CLAIM_COLUMNS, claim_row(grows(ours=True)), strict=True))
    assert row["what is claimed"].endswith("(ours)") and row["verdict"].startswith("**held**")
    assert row["ours"] == "slope a doubling: 0.104 [0.0884, 0.12], 7 seeds"


def test_one_kind_of_network_alone_is_named_as_such() -> None:
    assert "BN alone" in claim_row(grows())[-1]
    assert "alone" not in claim_row(grows(compared=(FITTED, replace(FITTED, name="WN"))))[-1]


@pytest.mark.parametrize(
    ("quantity", "ends"),
    [("share of runs", (0.0, 1.0)), ("Pearson of a and b", (-1.0, 1.0)), ("points", None)],
)
def test_no_interval_leaves_the_range_of_its_statistic(
    quantity: str, ends: tuple[float, float] | None
) -> None:
    result = claim("", "", quantity, [-3.0, 0.5, 4.0], compared=())
    assert (result.low, result.high) == ends or (
        ends is None and result.low < -1 and result.high > 1
    )
    stored = Claim.from_dict({**result.to_dict(), "low": -5.0, "high": 5.0})
    assert (stored.low, stored.high) == (ends or (-5.0, 5.0))


def test_ours_are_counted_apart() -> None:
    claims = [grows(), grows(RISES[:2]), grows(ours=True), not_run("a", "b", "c")]
    assert counts(claims) == "of the paper's 3: 1 held, 1 open, 1 not run; of ours 1: 1 held"
    assert counts([]) == ""


def noisy(mean: np.ndarray, runs: int = 3) -> list[list[float]]:
    return (mean + np.random.default_rng(0).normal(0, 0.01, (runs, len(mean)))).tolist()


def test_curves_that_have_flattened_are_finished() -> None:
    epochs = np.arange(60)
    flat = 1 - np.exp(-epochs / 6)
    assert has_flattened(noisy(flat)) and has_flattened(noisy(1 - flat), falling=True)
    assert has_flattened(noisy(flat - 0.004 * epochs))  # it falls again: overfitting is not growth
    # szolnoky2022, Table 1 at 80 %: at chance until epoch 17, rising until the last
    late = 0.1 + 0.2 * np.clip((epochs - 25) / 35, 0, 1)
    assert not has_flattened(noisy(late)) and not has_flattened(noisy(-late), falling=True)
    assert not has_flattened(noisy(flat)[:2] + noisy(flat[:4])) and not has_flattened([])
    assert has_flattened([[0.1] * 10])


def test_one_rule_for_large_and_small_initial_losses() -> None:
    epochs = np.arange(100)
    large, small = 1e5 * np.exp(-epochs / 10), 2.3 * np.exp(-epochs / 10)
    # within a twentieth of its range from epoch 30 on
    assert not has_flattened([large.tolist()], falling=True)
    assert not has_flattened([small.tolist()], falling=True)
    arms = [
        replace(FITTED, finished=None, loss_curve=tuple(curve.tolist())) for curve in (large, small)
    ]
    # the small loss ends at 0.0001 nats, the large one at 5: the samples are fitted in the one case alone
    assert [one.done for one in arms] == [False, True]
    flat = np.maximum(large, 40.0) + 0.01 * np.cos(epochs)
    assert replace(FITTED, finished=None, loss_curve=tuple(flat.tolist())).done is True
