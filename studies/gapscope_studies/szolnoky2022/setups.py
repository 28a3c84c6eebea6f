"""Setups: networks on corrupted data in the middle scenario, and the tuned regularizers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope_studies.kit.study import RunSettings

FIVE_METHODS = ("Unregularised", "Dropout", "Weight", "Loss gradient", "MGS")
# baselines of later papers, made for wrong labels: losses in place of the cross-entropy
ROBUST_LOSSES = ("GCE", "ELR")


@dataclass(frozen=True)
class Method:
    """One regularizer with one setting, its strength, tuned between `low` and `high`.

    The strength is that of a `penalty` (its name and options) or the value of the setting `path`; `fixed` are settings
    that come with it. A `cyclical` learning rate rises and falls twice in a run.
    """

    name: str
    colour: str
    low: float = 0.0
    high: float = 0.0
    logarithmic: bool = True
    path: str = ""
    penalty: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    cyclical: bool = False

    def strengths(self, n: int) -> tuple[float, ...]:
        """Return n strengths in rising order, to two digits, or the only one without tuning."""
        if self.low == self.high:
            return (self.low,)
        spaced = numpy.geomspace if self.logarithmic else numpy.linspace
        return tuple(float(f"{value:.2g}") for value in spaced(self.low, self.high, n))

    def apply(self, spec: RunSpec, strength: float) -> RunSpec:
        """Return the spec of the same network trained by this method."""
        changes = dict(self.fixed)
        if self.path:
            changes[self.path] = strength
        if self.penalty:
            name, options = self.penalty["name"], self.penalty.get("options", {})
            changes["training.penalties"] = [
                {"name": name, "options": {"strength": strength, **options}}
            ]
        if self.cyclical:
            changes["training.schedule_epochs"] = spec.training.epochs // 2 // 2
        return spec.replace(changes)


SETUPS = tomllib.loads(Path(__file__).with_name("setups.toml").read_text("utf-8"))
METHODS = {name: Method(name, **content) for name, content in SETUPS["methods"].items()}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Network on data, the compared methods ("Unregularised" first), and their tuning."""

    base: RunSpec  # the unregularized network in the middle scenario
    methods: tuple[Method, ...]
    n_strengths: int
    folds: int
    folds_scored: int  # how many of the folds are held out in turn
    runs: int  # networks a method and scenario, with their own training samples, corruption and initial weights
    metric: str = "accuracy"  # or "loss", of the test split
    chance: float = 10.0  # metric that a diverged network is given: that of guessing, in per cent; NaN for losses
    # "every" so many epochs, on "n_samples"
    watched: Mapping[str, int] = field(default_factory=dict)
    bench_sizes: Sequence[int] = ()
    bench_noises: Sequence[float] = ()
    printed_noises: Sequence[float] = ()  # of the paper's tables, those that are run
    long: Mapping[str, Any] = field(default_factory=dict)  # "noises" trained for "times" as long

    @property
    def lower_is_better(self) -> bool:
        """True if the metric is a loss."""
        return self.metric == "loss"

    @property
    def colours(self) -> dict[str, str]:
        """Colour by method."""
        return {method.name: method.colour for method in self.methods}

    def with_seed(self, seed: int) -> RunSpec:
        """Return the base with other training samples, corruption, initial weights and order."""
        changes: dict[str, Any] = {"seed": seed, "data.seed": seed}
        if self.base.data.name == "two_circles":  # resampled from a seed of its own
            changes["data.options.seed"] = seed
        return self.base.replace(changes)


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables merged, with the values of the second in common keys."""
    both = {key: _merge(first[key], second[key]) for key in first.keys() & second.keys()
            if isinstance(second[key], dict)}  # fmt: skip
    return {**first, **second, **both}


def read_sizes(setting: RunSettings) -> Any:
    """Return what `setups.toml` and `<scale>.toml` hold together."""
    return _merge(SETUPS, setting.read(__file__))


def make_setup(setting: RunSettings, name: str, *more: str, printed: bool = False) -> Setup:
    """Return a setup at this scale, with `more` methods or the budget of `printed` tables."""
    sizes = read_sizes(setting)
    content, common = dict(sizes[name]), sizes["common"]
    larger = content.pop("printed", {})
    if printed:
        content = _merge(content, larger)
    base = RunSpec.from_dict(
        {table: content.pop(table, {}) for table in ("data", "network", "training")}
    )
    ranges, names = content.pop("ranges", {}), (*FIVE_METHODS, *content.pop("also", ()), *more)
    methods = tuple(
        replace(METHODS[method], low=ranges[method][0], high=ranges[method][1])
        if method in ranges
        else METHODS[method]
        for method in names
    )
    shared = {name: common[name] for name in ("printed_noises", "bench_noises")} | common["effort"]
    return Setup(base=base, methods=methods, **{**shared, **content.pop("effort", {}), **content})
