"""The registry of measures: a decorator that carries the facts, and look-up by name.

A measure is a function `(network, x[, y][, initial_state=...], *, options) -> number(s)`. It returns a float, a 0-d
tensor or an Estimate where it yields one number, and an object with `scalars() -> {name: float | Estimate}` where it
yields several; such an object may say why a number is NaN, by `missing() -> {name: why}`. Every file in
`gapscope.measures` is found by itself; a measure of your own is registered by the decorator.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, check_choice, did_you_mean
from gapscope.base.importing import import_all
from gapscope.base.options import check_known
from gapscope.base.samples import Samples
from gapscope.results.estimate import Estimate
from gapscope.results.readings import Direction, Reading, Readings

NEEDS = ("inputs", "targets", "labels", "initial", "history")
COST_CLASSES = {
    "weights": "no pass over the samples",
    "forward": "a few forward passes",
    "backward": "up to about ten backward passes",
    "many": "tens of passes, or a backward pass an output",
    "superlinear": "grows faster than the number of samples",
}
REPARAMETRIZATIONS = {
    "layer rescaling": "a layer before a ReLU times a factor, the next one divided by it: the same outputs",
    "unit permutation": "the hidden units of a layer in another order: the same outputs",
    "head shift": "the same number added to every logit: the same probabilities",
}
EVERYTHING = tuple(REPARAMETRIZATIONS)


@dataclass(frozen=True)
class ScalarInfo:
    """Facts of one number that a measure yields.

    Attributes:
        units: Units of the number.
        direction: Which direction goes with a smaller generalization gap: "lower", "higher" or "none".
        aggregation: Over what it is summed or averaged.
        title: What it is, in words, after the title of its measure; empty for its name.
    """

    units: str
    direction: Direction = "none"
    aggregation: str = ""
    title: str = ""


@dataclass(frozen=True)
class Sampling:
    """How a measure is taken on a part of the samples, where a budget of seconds asks for it.

    Attributes:
        kind: How the number of all samples follows from the part: "mean" (a mean over samples), "sum" (a sum over
            samples), "own" (states a standard error that covers the choice of samples), "whole" (none of these: the
            part's own number, its standard error from the spread among eight groups of the part).
        fewest: Never fewer samples than these.
        passes: Forward passes per sample that it costs, roughly, given the number of outputs.
        probe: Options that make it cheaper, tried before samples are left out.
    """

    kind: Literal["mean", "sum", "own", "whole"]
    fewest: int
    passes: Callable[[int], float]
    probe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """A registered measure: its function and its facts.

    Attributes:
        name: Name in the registry.
        function: The function.
        needs: What it is given beside the network: "inputs", "targets" (labels or regression targets), "labels"
            (class labels only), "initial" (the state dictionary before training), "history" (one mapping an epoch, as
            training returns it).
        numbers: Facts of each number it yields.
        cost: What it costs, in passes through the network.
        reference: Source, with equation number.
        default: Whether it is taken when no measures are named.
        supports_dense: Whether it also takes a label per position (pixels, tokens), where it needs targets or labels.
        title: What it measures, in words that need no paper; reports show it beside the name.
        cost_class: Which of `COST_CLASSES` the cost belongs to.
        invariances: Which of `REPARAMETRIZATIONS` leave all its numbers as they are (up to what is drawn); the initial
            weights are not reparametrized with the network.
        oracle: What its value is checked against.
        cross_checks: Other programs that compute it; the table of all measures says which were run.
        sampling: How it is taken on a part of the samples; None where a part says nothing of all.
        stream: Name of its random stream; measures of one stream draw the same numbers and so share work. Empty for
            its own name.
    """

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...]
    numbers: Mapping[str, ScalarInfo]
    cost: str
    reference: str
    default: bool = True
    supports_dense: bool = False
    title: str = ""
    cost_class: str = "forward"
    invariances: tuple[str, ...] = ()
    oracle: str = ""
    cross_checks: tuple[str, ...] = ()
    sampling: Sampling | None = None
    stream: str = ""

    @property
    def family(self) -> str:
        """Folder of its file within the measures, in words; empty for a measure of the four papers or of one's own."""
        parts = self.function.__module__.split(".")
        return parts[2].replace("_", " ") if parts[:2] == ["gapscope", "measures"] and len(parts) > 3 else ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword options of the function."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("initial_state", "history")
        )

    def applies_to(self, samples: Samples, *, has_initial: bool, has_history: bool = False) -> bool:
        """Whether everything that the measure needs is there."""
        targets_there = samples.targets is not None and (self.supports_dense or not samples.is_dense)
        labels_there = samples.is_classification or (self.supports_dense and samples.is_dense)
        return (
            ("targets" not in self.needs or targets_there)
            and ("labels" not in self.needs or labels_there)
            and ("initial" not in self.needs or has_initial)
            and ("history" not in self.needs or has_history)
        )

    def check_options(self, options: Iterable[str]) -> None:
        """Raise InvalidInput, naming the nearest right one, for a keyword option that the measure does not know."""
        check_known(self.name, options, self.options)

    def __call__(
        self,
        network: nn.Module,
        samples: Samples,
        *,
        initial_state: Mapping[str, Any] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Readings:
        """Measure and return the readings.

        Args:
            network: The network.
            samples: Inputs and targets.
            initial_state: State dictionary before training, for measures that need it.
            history: One mapping an epoch, as training returns it, for measures that need it.
            **options: Keyword options of the measure.

        Returns:
            One reading a number.

        Raises:
            InvalidInput: Something that the measure needs is missing, or an option is unknown.
        """
        self.check_options(options)
        if not self.applies_to(samples, has_initial=initial_state is not None, has_history=bool(history)):
            raise InvalidInput(
                f"{self.name} needs {', '.join(self.needs)}; pass data as (x, y)"
                f"{' and initial_state=state_dict before training' if 'initial' in self.needs else ''}"
                f"{' and history=what training returned, a mapping an epoch' if 'history' in self.needs else ''}."
            )
        arguments = [samples.inputs] if {"inputs", "targets", "labels"} & set(self.needs) else []
        if {"targets", "labels"} & set(self.needs):
            arguments.append(samples.targets)  # type: ignore[arg-type]
        if "initial" in self.needs:
            options["initial_state"] = initial_state
        if "history" in self.needs:
            options["history"] = history
        start = time.perf_counter()
        result = self.function(network, *arguments, **options)
        numbers, missing = _numbers(self.name, result), getattr(result, "missing", dict)()
        seconds = time.perf_counter() - start
        pairs = numbers.items()
        return Readings(self._reading(name, value, seconds, missing.get(name, "")) for name, value in pairs)

    def title_of(self, number: str) -> str:
        """What one of the numbers is, in words; empty where the measure has no title."""
        if number == self.name or not self.title:
            return self.title
        return f"{self.title}: {self.numbers[number].title or number.replace('.', ', ').replace('_', ' ')}"

    def _reading(self, name: str, value: Any, seconds: float, note: str) -> Reading:
        facts = self.numbers[name]
        return Reading(
            measure=self.name,
            number=name,
            value=float(value),
            standard_error=value.standard_error if isinstance(value, Estimate) else None,
            direction=facts.direction,
            units=facts.units,
            aggregation=facts.aggregation,
            reference=self.reference,
            seconds=seconds,
            note=note,
            title=self.title_of(name),
        )


def _numbers(name: str, result: Any) -> dict[str, Any]:
    if hasattr(result, "scalars"):
        return dict(result.scalars())
    if isinstance(result, torch.Tensor):
        return {name: result.item()}
    return {name: result}


_MEASURES: dict[str, Measure] = {}


def register_measure(
    name: str,
    *,
    needs: tuple[str, ...],
    cost: str,
    reference: str,
    units: str = "",
    direction: Direction = "none",
    aggregation: str = "",
    numbers: Mapping[str, ScalarInfo] | None = None,
    default: bool = True,
    supports_dense: bool = False,
    title: str = "",
    cost_class: str = "forward",
    invariances: tuple[str, ...] = (),
    oracle: str = "",
    cross_checks: tuple[str, ...] = (),
    sampling: Sampling | None = None,
    stream: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as a measure.

    Args:
        name: Name in the registry, also the name of its only number unless `numbers` is given.
        needs: Any of "inputs", "targets", "labels", "initial", "history".
        cost: What it costs, in passes through the network.
        reference: Source, with equation number.
        units: Units of the only number.
        direction: Direction of the only number that goes with a smaller gap.
        aggregation: Sum or mean, and over what.
        numbers: Facts of each number, for a measure that yields several.
        default: Whether it is taken when no measures are named; False for one whose cost grows faster than the
            number of samples.
        supports_dense: Whether it also takes a label per position.
        title: What it measures, in a few words that need no paper.
        cost_class: Which of `COST_CLASSES` the cost belongs to.
        invariances: Which of `REPARAMETRIZATIONS` leave all its numbers as they are.
        oracle: What its value is checked against.
        cross_checks: Other programs that compute it; the table of all measures says which were run.
        sampling: How it is taken on a part of the samples; None where a part says nothing of all.
        stream: Name of the random stream that it shares with others; empty for its own.

    Returns:
        The decorator; it returns the function unchanged.

    Raises:
        InvalidInput: The name is taken by another function, or a need, a cost class or a reparametrization is unknown.
    """
    check_choice("cost_class", cost_class, COST_CLASSES)
    for change in invariances:
        check_choice("unchanged_by", change, REPARAMETRIZATIONS)
    for need in needs:
        if need not in NEEDS:
            raise InvalidInput(f"needs must name any of {', '.join(NEEDS)}; got {need!r}.{did_you_mean(need, NEEDS)}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        taken = _MEASURES.get(name)
        if taken is not None and (taken.function.__module__, taken.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise InvalidInput(f"A measure called {name!r} is registered already; choose another name.")
        facts = dict(numbers) if numbers else {name: ScalarInfo(units, direction, aggregation)}
        _MEASURES[name] = Measure(
            name, function, needs, facts, cost, reference, default, supports_dense, title,
            cost_class, invariances, oracle, cross_checks, sampling, stream,
        )  # fmt: skip
        return function

    return register


def list_measures() -> dict[str, Measure]:
    """All registered measures by name, sorted; those of gapscope are imported first."""
    import_all("gapscope.measures")
    return dict(sorted(_MEASURES.items()))


def get_measure(name: str) -> Measure:
    """Look a measure up by name.

    Args:
        name: Its name.

    Returns:
        The measure.

    Raises:
        InvalidInput: There is none of this name; the nearest is named.
    """
    known = list_measures()
    if name not in known:
        raise InvalidInput(f"There is no measure {name!r}; known are {', '.join(known)}.{did_you_mean(name, known)}")
    return known[name]
