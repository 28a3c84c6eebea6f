"""Registry of measures: the decorator `register_measure`, and look-up by name.

A measure is a function `(network, x[, y], *, [initial_state=, history=,] options) -> number(s)`. It returns a float, a
0-d tensor or an Estimate for one number, and an object with `scalars() -> {name: float | Estimate}` for several;
`missing() -> {name: reason}` of such an object explains NaN. `list_measures` imports all files in `gapscope.measures`;
a measure in another package is registered when its module is imported.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal

import numpy
import torch
from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, check_choice, describe_value, did_you_mean
from gapscope.base.foreign_data import no_labels_message
from gapscope.base.options import add_common_parameters, check_known
from gapscope.base.samples import Samples
from gapscope.base.targets import require_labels
from gapscope.base.type_guards import is_mapping
from gapscope.inspection.counted_outputs import with_counted
from gapscope.inspection.network_checks import check_module
from gapscope.results.catalogue import Catalogue
from gapscope.results.estimate import Estimate
from gapscope.results.readings import Direction, Reading, Readings

Options = Mapping[str, Any]
Function = Callable[..., Any]

COST_CLASSES = {
    "weights": "no pass over the samples",
    "forward": "a few forward passes",
    "backward": "up to about ten backward passes",
    "many": "tens of passes, or one backward pass per output",
    "superlinear": "grows faster than the number of samples",
}
# argument of a measure -> entry of `Measure.needs`
_NEEDS = {"x": "inputs", "y": "targets", "initial_state": "initial", "history": "history"}


LOSS_UNIT = "nats (cross-entropy) or squared target units (regression)"
"""Units of a loss whose task is not known yet; readings have those of their task."""


@dataclass(frozen=True)
class ScalarInfo:
    """Description of one number that a measure returns.

    Attributes:
        units: Units of the number.
        direction: Direction that predicts a smaller generalization gap: "lower", "higher" or "none".
        aggregation: Sum or mean, and over what.
        title: Noun phrase, shown after the title of the measure; empty for its name.
    """

    units: str
    direction: Direction = "none"
    aggregation: str = ""
    title: str = ""


@dataclass(frozen=True)
class Sampling:
    """Evaluation of a measure on a subset of the samples, used under a time budget.

    Attributes:
        kind: Extrapolation from the subset to all samples: "mean" (a mean over samples), "sum" (a sum over samples),
            "own" (the standard error of the measure covers the sampling), "whole" (none of these: the number of the
            subset, with a standard error from the spread over eight groups of the subset).
        fewest: Size of the smallest subset.
        passes: Approximate number of forward passes per sample, as a function of the number of outputs.
        probe: Options that make it cheaper, applied before the number of samples is reduced.
    """

    kind: Literal["mean", "sum", "own", "whole"]
    fewest: int
    passes: Callable[[int], float]
    probe: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """A registered measure: its function and its metadata.

    Attributes:
        name: Name in the registry.
        function: The function.
        needs: Arguments in addition to the network: "inputs", "targets" (labels or regression targets), "labels" (class
            labels only), "initial" (state dictionary before training), "history" (one mapping per epoch).
        numbers: Description of each number that it returns.
        reference: Source, with equation number.
        title: Quantity as a noun phrase, shown next to the name in reports.
        cost_class: Key of `COST_CLASSES`.
        default: Whether it is measured when no measures are named.
        tasks: Kinds of targets that it accepts (see `gapscope.base.task`), if it needs targets.
        compares_classes: Whether it compares the logits of several classes: a single output z is passed as the two
            logits 0 and z.
        sampling: Evaluation on a subset; None if a subset is not informative.
        stream: Name of its random stream; measures of one stream use the same random numbers and share work.
    """

    name: str
    function: Function
    needs: tuple[str, ...]
    numbers: Mapping[str, ScalarInfo]
    reference: str
    title: str
    cost_class: str
    default: bool
    tasks: tuple[str, ...]
    compares_classes: bool
    sampling: Sampling | None
    stream: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword options of the function."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _NEEDS
        )

    def lacking(self, *, has_initial: bool, has_history: bool = False) -> str:
        """Return what the measure needs beside data, and is not there (empty if nothing).

        Args:
            has_initial: Whether there is a state dictionary before training.
            has_history: Whether there is a training history.
        """
        if "initial" in self.needs and not has_initial:
            return "needs the weights before training; pass initial_state=, a copy.deepcopy of network.state_dict()"
        if "history" in self.needs and not has_history:
            return "needs the training history; pass history=, one mapping per epoch with its train_loss"
        return ""

    @property
    def needs_targets(self) -> bool:
        """Whether the measure needs labels or other targets."""
        return not {"targets", "labels"}.isdisjoint(self.needs)

    def unsuitable(self, samples: Samples) -> str:
        """Return why the measure has no value for these targets (empty if it has one).

        Args:
            samples: Data, with or without targets.
        """
        if not self.needs_targets:
            return ""
        if samples.targets is None:
            names = samples.form and samples.form.names
            return no_labels_message(names or (), "").strip(" .")
        return "" if samples.kind in self.tasks else REASONS[samples.kind]

    def check_options(self, options: Iterable[str]) -> None:
        """Raise InvalidInput, with the nearest valid name, for an unknown keyword option.

        Args:
            options: Names of keyword options.
        """
        check_known(self.name, options, self.options)

    def __call__(
        self,
        network: nn.Module,
        samples: Samples,
        *,
        initial_state: Options | None = None,
        history: Sequence[Options] = (),
        **options: Any,
    ) -> Readings:
        """Measure a network and return one reading per number."""
        self.check_options(options)
        lacking = self.lacking(has_initial=initial_state is not None, has_history=bool(history))
        if reason := lacking or self.unsuitable(samples):
            raise InvalidInput(f"{self.name} {reason}.")
        arguments = []
        if "inputs" in self.needs:
            arguments = [samples.inputs]
        if self.needs_targets:
            arguments.append(samples.y)
        if "initial" in self.needs:
            options["initial_state"] = initial_state
        if "history" in self.needs:
            options["history"] = history
        start = time.perf_counter()
        generator: torch.Generator | None = options.get("generator")
        state = torch.empty(0) if generator is None else generator.get_state()
        if "inputs" in self.needs and not self.needs_targets:
            network = with_counted(network, samples)
        result: Any = self.function(network, *arguments, **options)
        if isinstance(result, torch.Tensor):
            result = result.item()
        numbers = {self.name: result}
        if hasattr(result, "scalars"):
            numbers = dict(result.scalars())
        missing = getattr(result, "missing", dict)()
        seconds = time.perf_counter() - start
        is_random = generator is not None and not torch.equal(generator.get_state(), state)
        loss_unit = LOSS_UNIT
        if samples.targets is not None:
            loss_unit = samples.task.loss_unit
        readings = Readings(
            self._reading(name, value, seconds, missing.get(name, ""), loss_unit)
            for name, value in numbers.items()
        )
        return not_exact(readings, "standard error unknown") if is_random else readings

    def title_of(self, number: str) -> str:
        """Return the title of one number (empty if the measure has none).

        Args:
            number: Name of the number, a key of `numbers`.
        """
        if number == self.name or not self.title:
            return self.title
        return f"{self.title}: {self.numbers[number].title or number.replace('.', ', ').replace('_', ' ')}"

    def _reading(self, name: str, value: Any, seconds: float, note: str, loss_unit: str) -> Reading:
        info = self.numbers[name]
        units = info.units
        if units == LOSS_UNIT:
            units = loss_unit
        return Reading(
            measure=self.name,
            number=name,
            value=float(value),
            standard_error=value.standard_error if isinstance(value, Estimate) else None,
            direction=info.direction,
            units=units,
            aggregation=info.aggregation,
            reference=self.reference,
            seconds=seconds,
            note=note,
            title=self.title_of(name),
        )


def not_exact(readings: Readings, note: str = "") -> Readings:
    """Return readings with an unknown standard error, and a note, where they have none: they would count as exact."""
    return Readings(
        replace(each, standard_error=math.nan, note=each.note or note)
        if each.standard_error is None
        else each
        for each in readings
    )


_MEASURES: dict[str, Measure] = {}


REASONS = {
    "regression": "needs class labels; these are regression targets",
    "positions": "needs one label per sample; these data have a label per position",
    "multi-label": "needs one class per sample; these data have several labels per sample",
}
"""Why measures do not apply to a kind of targets."""


def check_numbers(name: str, y: Any) -> None:
    """Raise InvalidInput for labels that are text, which only data with notes can number.

    Args:
        name: Name of the function that takes them.
        y: Labels or targets of any form; None passes.

    Raises:
        InvalidInput: They are no numbers.
    """
    if (
        y is not None
        and not isinstance(y, torch.Tensor)
        and numpy.asarray(y).dtype.kind not in "biuf"
    ):
        raise InvalidInput(
            f"y of {name} must be a tensor of numbers; got {describe_value(y)}. Number the classes as the outputs are, "
            "or use gapscope.measure, which reads labels of any form."
        )


def _with_checked_arguments(name: str, function: Function, tasks: tuple[str, ...]) -> Function:
    """Return the function with a check of network, inputs and targets, for calls without `gapscope.measure`."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(network: nn.Module, *arguments: Any, **options: Any) -> Any:
        check_module(network)
        call = signature.bind(network, *arguments, **options)
        given = call.arguments
        if "x" in given:
            check_numbers(name, given.get("y"))
            # which raises for unusable inputs and targets
            samples = Samples(given["x"], given.get("y"), notes=())
            if "y" in given and "regression" not in tasks:
                require_labels(samples, name, kinds=tasks)
            for key, read in {"x": samples.inputs, "y": samples.targets}.items():
                # several inputs are packed in one tensor, which is not what the function takes
                is_taken = isinstance(given.get(key), torch.Tensor | tuple | None)
                if not is_taken and not is_mapping(given[key]):
                    given[key] = read
        return function(*call.args, **call.kwargs)

    return checked


@check_arguments
def register_measure(
    name: str = "",
    *,
    numbers: ScalarInfo | Mapping[str, ScalarInfo],
    reference: str,
    title: str,
    cost_class: str = "forward",
    labels: bool = False,
    default: bool = True,
    tasks: tuple[str, ...] = (),
    compares_classes: bool = False,
    sampling: Sampling | None = None,
    stream: str = "",
) -> Callable[[Function], Function]:
    """Register the decorated function as a measure, and complete its docstring.

    The parameters are attributes of `Measure`. Its needs follow from the arguments `x`, `y`, `initial_state` and
    `history` of the function. Common parameters that its docstring does not list are added to it.

    Args:
        name: Name in the registry; empty for that of the function.
        numbers: Description of the only number, or of each by name.
        reference: Source, with equation number; empty if there is none.
        title: Quantity as a noun phrase, for reports.
        cost_class: Key of `COST_CLASSES`, by which the time budget plans. By default "forward", a few forward passes.
        labels: Whether `y` must hold class labels.
        default: Whether it is measured when no measures are named.
        tasks: Kinds of targets; empty for one class per sample with `labels`, else for all without positions.
        compares_classes: Whether it compares the logits of several classes: one output z is passed as 0 and z.
        sampling: Evaluation on a subset; None if a subset is not informative.
        stream: Name of its random stream; empty for that of the measure.
    """
    check_choice("cost_class", cost_class, COST_CLASSES)
    if not tasks:
        if labels:
            tasks = ("classification",)
        else:
            tasks = ("classification", "multi-label", "regression")

    def register(function: Function) -> Function:
        key = name or function.__name__
        _, *parameters = inspect.signature(function).parameters.values()
        for item in parameters:
            if item.default is item.empty and item.name not in _NEEDS:
                raise InvalidInput(
                    f"Required arguments of a measure must be the network and any of {', '.join(_NEEDS)}; {key} has "
                    f"{item.name!r}. Rename it, or add a default."
                )
        registered = function
        if key in _MEASURES:
            registered = _MEASURES[key].function
        if (registered.__module__, registered.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise InvalidInput(
                f"A measure called {key!r} is registered already; choose another name."
            )
        add_common_parameters(function, "gapscope.measures")
        needs = [_NEEDS[item.name] for item in parameters if item.name in _NEEDS]
        checked = _with_checked_arguments(key, function, tasks)
        _MEASURES[key] = Measure(
            key,
            checked,
            tuple("labels" if labels and need == "targets" else need for need in needs),
            {key: numbers} if isinstance(numbers, ScalarInfo) else dict(numbers),
            reference,
            title,
            cost_class,
            default,
            tasks,
            compares_classes,
            sampling,
            stream or key,
        )
        return checked

    return register


def list_measures() -> Catalogue[Measure]:
    """Return all registered measures by name, sorted, importing those of gapscope first (printed as a table).

    >>> import gapscope as gs
    >>> measures = gs.list_measures()
    >>> len(measures) > 40, measures["ntk_trace"].cost_class
    (True, 'many')
    >>> measures.to_pandas().columns.tolist()
    ['name', 'needs', 'cost', 'default', 'what it measures']
    """
    import_all("gapscope.measures")
    return Catalogue(dict(sorted(_MEASURES.items())), _describe)


def _describe(item: Measure) -> dict[str, str]:
    return {
        "needs": ", ".join(item.needs),
        "cost": item.cost_class,
        "default": "yes" if item.default else "",
        "what it measures": item.title,
    }


def get_measure(name: str) -> Measure:
    """Return the measure of this name."""
    known = list_measures()
    if name not in known:
        raise InvalidInput(
            f"There is no measure {name!r}; known are {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return known[name]
