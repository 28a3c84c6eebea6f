"""Every protocol on 96 real networks, against values computed by independent code."""

from __future__ import annotations

import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.estimation import compare_protocols
from tables import rows_of

# Kendall's tau, granulated tau, 100 x the competition's score, R squared
REFERENCE = {
    "m.rbf": (0.809, 0.583, 28.661, 0.918),
    "m.wcv": (0.786, 0.545, 27.745, 0.804),
    "m.smoothness_gap": (0.607, 0.500, 10.909, 0.625),
    "m.vr": (0.544, 0.479, 9.316, 0.487),
    "m.vpm_g80": (0.504, 0.410, 5.611, 0.463),
    "m.vpm_g1": (0.500, 0.396, 6.070, 0.432),
    "m.train_loss": (0.308, 0.198, 1.623, 0.206),
    "m.vc_dim": (0.151, 0.153, 0.039, 0.133),
}


@pytest.fixture(scope="module")
def found(pgdl: pandas.DataFrame) -> pandas.DataFrame:
    settings = [column for column in pgdl.columns if column.startswith("hp.")]
    return compare_protocols(pgdl, list(REFERENCE), hyperparameters=settings, baseline="m.vc_dim")


@pytest.mark.parametrize("measure", list(REFERENCE))
def test_reference_values(found: pandas.DataFrame, measure: str) -> None:
    row = rows_of(found)[measure]
    values = [row[name] for name in ("kendall", "granulated", "pgdl_score", "r_squared")]
    assert values == pytest.approx(REFERENCE[measure], abs=0.0005001)


def test_protocols_disagree_and_the_size_baseline_is_marked(found: pandas.DataFrame) -> None:
    assert found["is_baseline"].tolist() == [False] * 7 + [True]
    assert found.loc["m.vc_dim", "granulated_dropped"] == 128
    size = found.loc["m.vc_dim"].to_dict()
    assert size["r_squared"] > 0.1 and size["mutual_information"] < 0.002
    by_tau, by_score = (found[name].rank().tolist() for name in ("kendall", "pgdl_score"))
    assert by_tau != by_score
    assert found["worst_sign_error"].tolist() == [1.0] * 8


def test_a_measure_of_the_opposite_direction_has_the_same_sign_errors(pgdl: pandas.DataFrame) -> None:
    table = pgdl.assign(**{"m.negated": -pgdl["m.wcv"]})
    settings = [column for column in pgdl.columns if column.startswith("hp.")]
    both = rows_of(compare_protocols(table, ["m.wcv", "m.negated"], hyperparameters=settings, baseline=None))
    same = ["mutual_information", "sign_error", "worst_sign_error", "environments", "r_squared"]
    wcv, negated = both["m.wcv"], both["m.negated"]
    assert [wcv[name] for name in same] == pytest.approx([negated[name] for name in same])


def test_one_hyperparameter_has_no_competition_score(pgdl: pandas.DataFrame) -> None:
    found = compare_protocols(pgdl, ["m.wcv"], hyperparameters=["hp.bs"], baseline="m.vc_dim")
    assert found["pgdl_score"].isna().tolist() == [True, True]
    with pytest.raises(InvalidInput, match="must have a column 'parameter_count'"):
        compare_protocols(pgdl, ["m.wcv"], hyperparameters=["hp.bs"])
