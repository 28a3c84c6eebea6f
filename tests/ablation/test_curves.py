from __future__ import annotations

import torch

from gapscope.ablation.class_curves import areas, below_chance, reversed_turning_points, turning_points


def test_chance_is_reached_at_equality_whatever_its_rounding() -> None:
    for classes in (3, 7, 10, 49, 100):
        hits = torch.ones(classes, dtype=torch.float64) / classes
        assert bool(below_chance(hits[:1, None], classes).all())
        assert not bool(below_chance(hits[:1, None] + 1e-6, classes).any())


def test_a_curve_that_stays_above_chance_turns_at_its_first_minimum() -> None:
    curves = torch.tensor([[0.9, 0.4, 0.3, 0.3], [1.0, 1.0, 1.0, 1.0]])
    assert turning_points(curves, 10).tolist() == [2, 0]


def test_conventions_of_the_reversed_turning_point() -> None:
    curve = torch.tensor([[0.9, 1.0, 1.0, 0.2, 1.0]])
    found = {
        (ties, everything): reversed_turning_points(curve, ties=ties, include_all_ablated=everything).item()
        for ties in ("first", "last")
        for everything in (False, True)
    }
    assert found == {("first", False): 1, ("first", True): 1, ("last", False): 2, ("last", True): 4}


def test_signed_area_is_a_fixed_part_of_the_absolute_one_where_curves_do_not_cross() -> None:
    curve = torch.tensor([[1.0, 0.5, 0.25, 0.0]])
    reverse = torch.tensor([[1.0, 1.0, 0.5, 0.0]])
    units = 3
    absolute, signed = areas(curve, reverse, "absolute"), areas(curve, reverse, "signed")
    assert absolute.item() == 0.25 and signed.item() == absolute.item() * units / (units + 1)
    assert torch.equal(areas(reverse, curve, "absolute"), absolute)
    assert torch.equal(areas(reverse, curve, "signed"), -signed)
