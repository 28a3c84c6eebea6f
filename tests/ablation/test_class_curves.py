"""Ranking of units, turning points and areas of curves."""

from __future__ import annotations

import torch

from gapscope.ablation.class_curves import (
    areas,
    below_chance,
    mean_absolute_activation,
    reversed_turning_points,
    turning_points,
)


def test_activations_count_without_their_sign() -> None:
    values = torch.tensor([[[2.0, -2.0], [1.0, 1.0]], [[0.0, 4.0], [1.0, 1.0]]])
    assert mean_absolute_activation(values).tolist() == [2.0, 1.0]


def test_chance_is_reached_at_equality_whatever_its_rounding() -> None:
    for classes in (3, 7, 10, 49, 100):
        hits = torch.ones(classes, dtype=torch.float64) / classes
        assert bool(below_chance(hits[:1, None], classes).all())
        assert not bool(below_chance(hits[:1, None] + 1e-6, classes).any())


def test_a_curve_that_stays_above_chance_turns_at_its_first_minimum() -> None:
    curves = torch.tensor([[0.9, 0.4, 0.3, 0.3], [1.0, 1.0, 1.0, 1.0]])
    assert turning_points(curves, 10).tolist() == [2, 0]


def test_the_last_largest_value_before_all_units_are_removed_is_the_reversed_turning_point() -> None:
    assert reversed_turning_points(torch.tensor([[0.9, 1.0, 1.0, 0.2, 1.0]])).tolist() == [2]


def test_the_area_is_the_mean_distance_of_the_curves() -> None:
    curve, reverse = torch.tensor([[1.0, 0.5, 0.25, 0.0]]), torch.tensor([[1.0, 1.0, 0.5, 0.0]])
    assert areas(curve, reverse).item() == areas(reverse, curve).item() == 0.25
