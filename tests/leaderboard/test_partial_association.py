from __future__ import annotations

import numpy
import pandas
import pytest

from gapscope.leaderboard.association import partial_association


def _table(seed: int = 0, n: int = 90) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    rows, noise = numpy.arange(n), rng.normal(size=n)
    table = pandas.DataFrame({"width": rows % 3, "depth": rows // 3 % 2})
    gap = 2.0 * table["width"] + table["depth"] + noise
    return table.assign(gap=gap, noise=noise, other=rng.normal(size=n), copy=table["width"] * 5.0 + table["depth"])


@pytest.mark.parametrize("seeds_apart", [True, False])
def test_it_is_the_correlation_of_what_group_means_leave(seeds_apart: bool) -> None:
    table = _table(n=180)
    table = table.assign(norm=table["noise"] + 3 * table["width"], seed=table.index // 6 if seeds_apart else 0)
    found, p = partial_association(table, "norm", hyperparameters=["width", "depth"], n_permutations=100)
    assert found.value == pytest.approx(1, abs=0.12) and p < 0.05
    noisy = table.assign(norm=table["noise"] + 3 * table["width"] + 2 * table["other"])
    found, _ = partial_association(noisy, "norm", hyperparameters=["width", "depth"], n_permutations=100)
    recipe = (noisy["width"] * 2 + noisy["depth"]).to_numpy()
    left = [
        noisy[name].to_numpy() - numpy.array([noisy[name].to_numpy()[recipe == own].mean() for own in recipe])
        for name in ("norm", "gap")
    ]
    # six configurations of thirty seeds each: one is predicted from the others alone, so that main effects are fitted
    assert found.value == pytest.approx(float(numpy.corrcoef(left)[0, 1]), abs=0.12)


def test_a_copy_has_nothing_left() -> None:
    found, p = partial_association(_table(), "copy", hyperparameters=["width", "depth"], n_permutations=100)
    assert p > 0.05 and found.explained > 0.9


def test_its_sign_follows_the_measure_and_growing_functions_do_not_matter() -> None:
    table = _table().assign(norm=lambda t: t["noise"] + t["other"])
    forms = {"as is": table["norm"], "negated": -table["norm"], "grown": table["norm"].map(numpy.exp)}
    found = {
        name: partial_association(table.assign(m=values), "m", hyperparameters=["width"], n_permutations=20)[0].value
        for name, values in forms.items()
    }
    assert found["negated"] == pytest.approx(-found["as is"]) and found["grown"] == pytest.approx(found["as is"])
