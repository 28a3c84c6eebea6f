"""Decision boundaries of Fig. 2 against the true model of two noisy circles, whose densities are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
from scipy.special import i0e

from gapscope.pools.from_spec import prepared
from gapscope_studies.kit.plots import named, panels
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.szolnoky2022.protocol import HALF_WIDTH, POINTS, plane
from gapscope_studies.szolnoky2022.setups import Setup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Planes = Mapping[tuple[str, int], Sequence[float]]


def circle_density(radius: numpy.ndarray, circle: float, noise: float) -> numpy.ndarray:
    r"""Density at a distance from the centre of points spread evenly on a circle, with Gaussian noise.

    $\exp(-(r - a)^2 / 2 s^2) e^{-ra/s^2} I_0(ra/s^2) / (2 \pi s^2)$ for a circle of radius a and noise s.

    >>> bool(circle_density(numpy.array(0.0), 0.0, 1.0) == 1 / (2 * numpy.pi))
    True
    """
    scaled = radius * circle / noise**2
    return numpy.exp(-((radius - circle) ** 2) / (2 * noise**2)) * i0e(scaled) / (2 * numpy.pi * noise**2)


def true_model(factor: float, noise: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the likelier class at each point of `plane` (true: inner circle), and the density there."""
    radius = numpy.linalg.norm(plane().numpy(), axis=1)
    outer, inner = circle_density(radius, 1.0, noise), circle_density(radius, factor, noise)
    return inner > outer, (outer + inner) / (outer + inner).sum()


def disagreement(probabilities: Sequence[float] | numpy.ndarray, factor: float, noise: float) -> float:
    """Return the fraction of the data that a network classifies unlike the true model, on the points of `plane`."""
    inside, weight = true_model(factor, noise)
    return float(weight[(numpy.asarray(probabilities) > 0.5) != inside].sum())


def _circles(setup: Setup) -> tuple[float, float]:
    """Radius of the inner circle and noise of the data."""
    options = setup.base.data.options
    return float(options.get("factor", 0.5)), float(options.get("noise", 0.2))


def disagreements(setup: Setup, planes: Planes) -> dict[tuple[str, int], float]:
    """Disagreement with the true model of every network that finished, by method and seed."""
    return {key: disagreement(values, *_circles(setup)) for key, values in planes.items()}


def _draw(axis: Axes, values: Sequence[float], setting: RunSettings, setup: Setup) -> None:
    problem, _ = prepared(setup.with_seed(0), setting.data_root)
    side = numpy.linspace(-HALF_WIDTH, HALF_WIDTH, POINTS)
    axis.contourf(side, side, numpy.reshape(values, (POINTS, POINTS)), levels=[0, 0.5, 1],
                  colors=["#dbe5f3", "#f8ddd6"])  # fmt: skip
    inside, _ = true_model(*_circles(setup))
    axis.contour(side, side, inside.reshape(POINTS, POINTS), levels=[0.5], colors="k", linestyles="--", linewidths=0.7)
    assert problem.train.targets is not None
    dots, labels = problem.train.inputs.numpy(), problem.train.targets.numpy()
    for label, colour in ((0, "tab:blue"), (1, "tab:red")):
        axis.plot(*dots[labels == label].T, ".", color=colour, ms=3)
    axis.set(xticks=[], yticks=[], aspect="equal", xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_WIDTH, HALF_WIDTH))


def draw_boundaries(setting: RunSettings, setup: Setup, planes: Planes) -> Figure:
    """Decision boundary of every method's first run. Dashed: that of the true model."""
    figure, axes = panels(len(setup.methods), width=1.75, height=2.0)
    for axis, method in zip(axes, setup.methods, strict=True):
        if (method.name, 0) in planes:
            _draw(axis, planes[method.name, 0], setting, setup)
        named(axis, title=method.name)
    return figure
