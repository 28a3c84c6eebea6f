r"""Automatic penalty strength by feedback on memorization, without validation labels.

**Before training.** The first `watched` samples of the mini-batches are predicted from each other, each without its own
label, by the untrained network's kernel (`gapscope.labels`). S are those whose label is not the one predicted, and
$\hat r$ is the rate of label errors; $\pi = \min(1, \hat r n / |S|)$ is then the fraction of S that is wrong.

**While training**, at every `every`-th call, one forward pass gives each monitored sample's probabilities. With p the
probability of its own label and $\bar p$ the mean probability of the classes that are neither its label nor the one
predicted, what is known of labels that nothing speaks for is

$$m = \operatorname{mean}_S (p - \bar p), \qquad P = \operatorname{mean}_{\text{not } S} p .$$

Clean labels that were predicted wrongly are learned too, more slowly than others. So the share that is memorized,
and the share that is allowed, are

$$s = \frac{m}{\max(P, 1.5 / C)}, \qquad a = \tau + \kappa (1 - \pi)^{3/2} .$$

The strength begins at `start` and is multiplied by $\exp(g\, \mathrm{clip}((s / a - 1) / b, -1, 1))$ with g = 0.8 where
s > a and 0.35 below, between `least` and `most`: as long as nothing is memorized it falls, so that learning is
not slowed down; then it rises. A guard divides it by four, below `least` too, whenever P is less than half of its
maximum: the penalty then undoes what was learned.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import InputLayout
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.outputs import check_module, checked_outputs, inspection_mode, network_outputs, unwrapped
from gapscope.inspection.validation import ready
from gapscope.labels.kernel_views import classification_view, ntk_spectrum
from gapscope.labels.label_issues import assess_labels
from gapscope.penalties.batches import data_parallel
from gapscope.statistics.baselines import target_matrix

# chosen on the tuning runs of the study `automatic_strength`, before any network that judges them was trained
KAPPA, POWER = 0.65, 1.5
MIN_SAMPLES = 100  # the least that the rate of label noise needs
TOLERANCE = 0.06
BAND = 0.2
RISE, FALL = 0.8, 0.35
GUARD, GUARDED = 0.5, 0.25


def memorization_stats(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], predicted: Int[Tensor, " n"]
) -> tuple[float, float]:
    """Return m (0 if all labels are as predicted from the others) and P (0 if none is)."""
    own, other = (probabilities.gather(1, chosen[:, None]).squeeze(1) for chosen in (labels, predicted))
    suspect = labels != predicted
    rest = (1 - own - other) / max(probabilities.shape[1] - 2, 1)
    m = float((own - rest)[suspect].mean()) if bool(suspect.any()) else 0.0
    return m, float(own[~suspect].mean()) if bool((~suspect).any()) else 0.0


def _owned(network: nn.Module) -> nn.Module:
    """The network as its owner knows it, without wrappers and adapters."""
    return unwrapped(getattr(network, "adapted_from", network))


def _parts(inputs: Tensor, layout: InputLayout | None) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """Return names and tensors of the inputs (positions as numbers, no name for one tensor)."""
    if layout is None:
        return (), (inputs,)
    parts = layout.unpack(inputs)
    return layout.names or tuple(str(number) for number in range(len(parts))), parts


class AutomaticStrength:
    r"""Rule that sets a penalty's strength during training.

    `GradientSimilarityPenalty("auto")` has one with these settings; weight and loss gradient penalties have one with
    limits of their own. It must see class labels, 100 samples or more of one shape, and one process. Where inputs are
    augmented at random an epoch must have `watched` samples or more, else one sample would be met twice and speak for
    itself. It costs one kernel of the monitored samples, then a forward pass of these at every `every`-th call. Its
    state (`state_dict` of the penalty) holds the monitored samples, so that a resumed training continues as if
    unbroken.

    Args:
        watched: Samples that are monitored.
        every: Calls from one update to the next.
        start: Strength at the beginning.
        least: The strength falls below it only if the penalty undoes what was learned.
        most: The strength never exceeds it.
    """

    def __init__(
        self,
        *,
        watched: int = 512,
        every: int = 10,
        start: float = 0.003,
        least: float = 0.0005,
        most: float = 0.0125,
    ) -> None:
        check_range("watched of AutomaticStrength", watched, MIN_SAMPLES)
        check_range("every of AutomaticStrength", every, 1)
        check_range("least of AutomaticStrength", least, 0, low_open=True)
        check_range("most of AutomaticStrength (at least `least`)", most, least)
        check_range("start of AutomaticStrength (between `least` and `most`)", start, least, most)
        self.watched, self.every = watched, every
        self.least, self.most = least, most
        self.strength = start
        # called with the network before the first pass; raises if this strength is not for it
        self.check: Callable[[nn.Module], None] = check_module
        # (call, s, a, strength) at each update
        self.history: list[tuple[int, float, float, float]] = []
        self._calls = 0
        self._best = 0.0
        self._untrained: nn.Module | None = None
        self._kept: dict[str, Tensor] = {}
        self._inputs: list[tuple[Tensor, ...]] = []
        self._names: tuple[str, ...] = ()
        self._labels: list[Tensor] = []
        self._seen: set[int] = set()
        self._predicted: Int[Tensor, " n"] | None = None
        self._allowed = TOLERANCE

    def before_pass(self, network: nn.Module) -> float:
        """Return the strength before a forward pass, updated at every `every`-th call."""
        if data_parallel(network) is not None:
            raise InvalidInput(
                "An automatic strength must be that of one process; got DistributedDataParallel, where each would find "
                "its own. Pass a number."
            )
        if self._predicted is None:
            if self._untrained is None:
                self.check(network)
                self._untrained = copy.deepcopy(_owned(network))
                if self._kept:
                    self._untrained.load_state_dict(self._kept)
        elif self._calls % self.every == 0:
            self._update_strength(network)
        self._calls += 1
        return self.strength

    def after_pass(self, inputs: Tensor, targets: Tensor | None, layout: InputLayout | None = None) -> None:
        """Keep the samples of the mini-batch until there are enough of them."""
        if self._predicted is not None:
            return
        if targets is None or targets.is_floating_point() or targets.ndim != 1:
            given = "none" if targets is None else f"{targets.dtype} {list(targets.shape)}"
            raise InvalidInput(
                f"strength 'auto' needs class labels, int64 [n], at every call; got {given}. Call "
                "penalty.forward_with_penalty(network, x, y), or pass a number: for a regression, or for labels of "
                "positions, the strength does not set itself."
            )
        known = len(self._seen)
        names, parts = _parts(inputs.detach(), layout)
        self._keep(parts, targets.detach(), names)
        if len(self._labels) >= self.watched or len(self._seen) == known:
            self._predict_watched()

    def _keep(self, parts: tuple[Tensor, ...], labels: Tensor, names: tuple[str, ...] = ()) -> None:
        """Return copies of the samples that have not been collected before."""
        shapes = [list(part.shape[1:]) for part in parts]
        if self._inputs and (names != self._names or shapes != [list(part.shape) for part in self._inputs[0]]):
            raise InvalidInput(
                f"strength 'auto' needs samples of one shape; got {', '.join(map(str, shapes))} after "
                f"{', '.join(str(list(part.shape)) for part in self._inputs[0])}. Pad all batches to one length, or "
                "pass a number."
            )
        self._names = names
        for *sample, label in zip(*parts, labels, strict=True):
            mark = hash(b"".join(part.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for part in sample))
            if mark not in self._seen and len(self._labels) < self.watched:
                self._seen.add(mark)
                self._inputs.append(tuple(part.clone() for part in sample))
                self._labels.append(label.clone())

    def _watched_inputs(self) -> Any:
        """Return the monitored inputs as a tensor, tuple or mapping of keywords."""
        stacked = tuple(torch.stack(column) for column in zip(*self._inputs, strict=True))
        if not self._names:
            return stacked[0]
        return stacked if self._names[0].isdigit() else dict(zip(self._names, stacked, strict=True))

    def _predict_watched(self) -> None:
        """Predict the monitored samples from each other, by the untrained network."""
        if len(self._labels) < MIN_SAMPLES:
            raise InvalidInput(
                f"strength 'auto' needs {MIN_SAMPLES} different samples or more; the training has "
                f"{len(self._labels)}. Pass a number."
            )
        assert self._untrained is not None
        labels = torch.stack(self._labels).cpu()
        prepared = ready(self._untrained, (self._watched_inputs(), labels))
        n_classes = max(prepared.n_outputs, int(labels.max()) + 1)
        view = classification_view("NTK", ntk_spectrum(prepared, seed=0), target_matrix(labels, n_classes))
        predicted = view.loo.predictions.argmax(1).cpu()
        suspects = float((predicted != labels).double().mean())
        wrong = min(1.0, assess_labels(view, labels, n_classes, seed=0).noise.rate / max(suspects, 1e-9))
        self._allowed = TOLERANCE + KAPPA * (1 - wrong) ** POWER
        self._predicted, self._untrained, self._kept = predicted, None, {}

    def _update_strength(self, network: nn.Module) -> None:
        assert self._predicted is not None
        inputs, labels = self._watched_inputs(), torch.stack(self._labels).cpu()
        if not isinstance(inputs, Tensor) or isinstance(network, NetworkAdapter):
            prepared = ready(_owned(network), (inputs, labels))
            network, inputs = prepared.network, prepared.samples.inputs
        with inspection_mode(network):
            outputs = checked_outputs(network_outputs(network, inputs), len(inputs)).double().cpu()
        m, ordinary = memorization_stats(outputs.softmax(1), labels, self._predicted)
        share = m / max(ordinary, 1.5 / outputs.shape[1])
        self._best = max(self._best, ordinary)
        self._step_strength((share / self._allowed - 1) / BAND, collapsed=ordinary < GUARD * self._best)
        self.history.append((self._calls, share, self._allowed, self.strength))

    def _step_strength(self, error: float, *, collapsed: bool) -> None:
        """Update the strength once, unless the error is not finite (a diverging network)."""
        if not math.isfinite(error):
            return
        if collapsed:
            self.strength *= GUARDED
            return
        grown = self.strength * math.exp((RISE if error > 0 else FALL) * max(-1.0, min(1.0, error)))
        self.strength = min(self.most, max(grown, min(self.least, self.strength * math.exp(RISE))))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors by name that the next update depends on."""
        numbers = [self._calls, self.strength, self._best, self._allowed]
        state = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
        if self._labels:
            columns = [torch.stack(column) for column in zip(*self._inputs, strict=True)]
            keys = [f"inputs.{name}" for name in self._names] or ["inputs"]
            state |= {**dict(zip(keys, columns, strict=True)), "labels": torch.stack(self._labels)}
        if self._predicted is not None:
            state["predicted"] = self._predicted
        elif self._untrained is not None:
            state |= {f"untrained.{name}": tensor for name, tensor in self._untrained.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from the result of `state_dict`."""
        calls, self.strength, self._best, self._allowed = state["numbers"].tolist()
        self._calls, self.history = int(calls), []
        self._inputs, self._labels, self._seen = [], [], set()
        if "labels" in state:
            keys = [key for key in state if key == "inputs" or key.startswith("inputs.")]
            names = tuple(key.removeprefix("inputs.") for key in keys if key != "inputs")
            self._keep(tuple(state[key] for key in keys), state["labels"], names)
        self._predicted = state.get("predicted")
        self._untrained = None
        self._kept = {
            name.removeprefix("untrained."): tensor for name, tensor in state.items() if name.startswith("untrained.")
        }
