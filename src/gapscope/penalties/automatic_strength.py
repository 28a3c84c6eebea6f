r"""Automatic penalty strength by feedback on memorization, without validation labels.

**Before training.** The kernel of the untrained network predicts the first 512 training samples, each from all others
(`gapscope.labels`). S is the set of samples whose label differs from this prediction, and $\hat r$ the estimated rate
of label errors; $\pi = \min(1, \hat r n / |S|)$ is then the mislabelled fraction of S.

**During training**, at every `every`-th call, one forward pass returns the probabilities of these samples. With p the
probability of a sample's label and $\bar p$ the mean probability of the classes that are neither its label nor its
prediction,

$$m = \operatorname{mean}_S (p - \bar p), \qquad P = \operatorname{mean}_{\text{not } S} p$$

measure how far the labels that the kernel contradicts are learned, and how far all others are. Clean labels in S are
learned too, more slowly. The memorized fraction and the allowed one are therefore

$$s = \frac{m}{\max(P, 1.5 / C)}, \qquad a = \tau + \kappa (1 - \pi)^{3/2} .$$

The strength begins at `start` and is multiplied by $\exp(g\, \mathrm{clip}((s / a - 1) / b, -1, 1))$, with g = 0.8 if
s > a and 0.35 otherwise, between `least` and `most`: it falls while nothing is memorized, so that learning is not
slowed down, and then rises. If P is below half of its maximum, the penalty undoes what was learned: the strength is
then divided by four, below `least` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.input_layout import InputLayout
from gapscope.base.options import with_prefix
from gapscope.inspection.copies import copy_network
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.network_checks import check_module
from gapscope.inspection.outputs import checked_outputs, inspection_mode, network_outputs
from gapscope.inspection.validation import ready
from gapscope.labels.class_labels import assess_labels
from gapscope.labels.kernel_views import kernel_class_view, ntk_spectrum
from gapscope.penalties.base import bare_network
from gapscope.penalties.batches import data_parallel
from gapscope.results.formatting import pluralize

# Chosen on the tuning runs of the study `automatic_strength`; its evaluation runs came later.
KAPPA, POWER = 0.65, 1.5
TOLERANCE = 0.06  # tau
RISE, FALL = 0.8, 0.35  # g
# P relative to its maximum below which the strength is cut, and the factor
COLLAPSE, CUT = 0.5, 0.25
N_SAMPLES, MIN_SAMPLES = 512, 100  # the estimated rate of label errors needs at least 100


def memorization_stats(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], predictions: Int[Tensor, " n"]
) -> tuple[float, float]:
    """Return m (0 if S is empty) and P (0 if S holds all samples)."""
    p, at_prediction = (
        probabilities.gather(1, classes[:, None]).squeeze(1) for classes in (labels, predictions)
    )
    contradicted = labels != predictions
    # mean over the C - 2 classes that are neither label nor prediction; used only where the two differ
    mean_rest = (1 - p - at_prediction) / max(probabilities.shape[1] - 2, 1)
    if bool(contradicted.any()):
        m = float((p - mean_rest)[contradicted].mean())
    else:
        m = 0.0
    return m, float(p[~contradicted].mean()) if bool((~contradicted).any()) else 0.0


class AutomaticStrength:
    r"""Rule that sets a penalty's strength during training.

    `GradientSimilarityPenalty("auto")` uses one with these settings; other penalties have their own limits. It needs
    class labels, 100 samples or more of one shape, and a single process. With random augmentation an epoch needs 512
    samples or more, or the kernel would predict a sample from its own copy. It costs one kernel of the monitored
    samples, then one forward pass of them at every `every`-th call. Its state (in the `state_dict` of the penalty)
    holds the monitored samples, so that resumed training continues exactly.

    Args:
        every: Number of calls between updates.
        start: Strength at the beginning.
        least: The strength falls below it only if the penalty undoes what was learned.
        most: The strength never exceeds it.
    """

    def __init__(
        self,
        *,
        every: int = 10,
        start: float = 0.003,
        least: float = 0.0005,
        most: float = 0.0125,
    ) -> None:
        check_range("every of AutomaticStrength", every, 1)
        check_range("least of AutomaticStrength", least, 0, low_open=True)
        check_range("most of AutomaticStrength (at least `least`)", most, least)
        check_range("start of AutomaticStrength (between `least` and `most`)", start, least, most)
        self.every = every
        self.least = least
        self.most = most
        self.strength = start
        # called with the network before the first pass; raises if the rule does not suit it
        self.check: Callable[[nn.Module], None] = check_module
        # (call, s, a, strength) at each update
        self.history: list[tuple[int, float, float, float]] = []
        self._calls = 0
        self._best = 0.0
        self._untrained: nn.Module | None = None
        self._untrained_state: dict[str, Tensor] = {}
        self._inputs: list[tuple[Tensor, ...]] = []
        self._names: tuple[str, ...] = ()
        self._labels: list[Tensor] = []
        self._hashes: set[int] = set()
        self._predictions: Int[Tensor, " n"] | None = None
        self._allowed = TOLERANCE

    def __repr__(self) -> str:
        limits = f"every={self.every}, least={self.least}, most={self.most}"
        return f"AutomaticStrength({limits}; now {self.strength:.3g} after {pluralize(len(self.history), 'update')})"

    def before_pass(self, network: nn.Module) -> float:
        """Return the strength before a forward pass, updated at every `every`-th call.

        Args:
            network: The network in training, before the pass.

        Returns:
            The strength of this pass.

        Raises:
            InvalidInput: The network is wrapped for data-parallel training, or the rule does not suit it.
        """
        if data_parallel(network) is not None:
            raise InvalidInput(
                "An automatic strength needs a single process; got DistributedDataParallel, where the strengths would "
                "differ. Pass a number."
            )
        if self._predictions is None:
            if self._untrained is None:
                self.check(network)
                self._untrained = copy_network(bare_network(network))
                if self._untrained_state:
                    self._untrained.load_state_dict(self._untrained_state)
        elif self._calls % self.every == 0:
            self._update_strength(network)
        self._calls += 1
        return self.strength

    def after_pass(
        self, inputs: Tensor, targets: Tensor | None, layout: InputLayout | None = None
    ) -> None:
        """Collect the samples of the mini-batch until there are enough.

        Args:
            inputs: Inputs of the mini-batch, as one tensor.
            targets: Class labels of the mini-batch, int64 [n].
            layout: How several inputs are packed in `inputs`; None for one input.

        Raises:
            InvalidInput: There are no class labels, or an epoch holds fewer than 100 different samples.
        """
        if self._predictions is not None:
            return
        if targets is None or targets.is_floating_point() or targets.ndim != 1:
            if targets is None:
                got = "none"
            else:
                got = f"{targets.dtype} {list(targets.shape)}"
            raise InvalidInput(
                f"strength 'auto' needs class labels, int64 [n], at every call; got {got}. Call "
                "penalty.forward_with_penalty(network, x, y); for regression or labels of positions pass a number."
            )
        names: tuple[str, ...] = ()
        parts: tuple[Tensor, ...] = (inputs.detach(),)
        if layout is not None:
            parts = layout.unpack(inputs.detach())
            names = layout.names or tuple(str(number) for number in range(len(parts)))
        n_before = len(self._hashes)
        self._add_samples(parts, targets.detach(), names)
        # a mini-batch without a new sample ends the first epoch
        if len(self._labels) >= N_SAMPLES or len(self._hashes) == n_before:
            self._predict_samples()

    def _add_samples(
        self, parts: tuple[Tensor, ...], labels: Tensor, names: tuple[str, ...] = ()
    ) -> None:
        """Add copies of the samples that are new."""
        shapes = [list(part.shape[1:]) for part in parts]
        if self._inputs and (
            names != self._names or shapes != [list(part.shape) for part in self._inputs[0]]
        ):
            raise InvalidInput(
                f"strength 'auto' needs samples of one shape; got {', '.join(map(str, shapes))} after "
                f"{', '.join(str(list(part.shape)) for part in self._inputs[0])}. Pad all batches to one length, or "
                "pass a number."
            )
        self._names = names
        for *sample, label in zip(*parts, labels, strict=True):
            parts_of_key = (part.cpu().reshape(-1).view(torch.uint8).numpy() for part in sample)
            key = hash(b"".join(part.tobytes() for part in parts_of_key))
            if key not in self._hashes and len(self._labels) < N_SAMPLES:
                self._hashes.add(key)
                self._inputs.append(tuple(part.clone() for part in sample))
                self._labels.append(label.clone())

    def _monitored_inputs(self) -> Any:
        """Return the inputs as the network takes them: a tensor, a tuple or a mapping of keywords."""
        columns = tuple(torch.stack(column) for column in zip(*self._inputs, strict=True))
        if not self._names:
            return columns[0]
        if self._names[0].isdigit():
            return columns
        return dict(zip(self._names, columns, strict=True))

    def _predict_samples(self) -> None:
        if len(self._labels) < MIN_SAMPLES:
            raise InvalidInput(
                f"strength 'auto' needs {MIN_SAMPLES} different samples; got {len(self._labels)}. Pass a number."
            )
        assert self._untrained is not None
        labels = torch.stack(self._labels).cpu()
        prepared = ready(self._untrained, (self._monitored_inputs(), labels))
        classes, codes = labels.unique(return_inverse=True)
        view = kernel_class_view("NTK", ntk_spectrum(prepared, seed=0), codes, len(classes))
        self._predictions = classes[view.predictions.cpu()]
        contradicted = float((self._predictions != labels).double().mean())
        # pi = r n / |S|, the mislabelled fraction of S
        wrong = min(1.0, assess_labels(view, codes)[1].rate / max(contradicted, 1e-9))
        self._allowed = TOLERANCE + KAPPA * (1 - wrong) ** POWER
        self._untrained = None
        self._untrained_state = {}

    def _update_strength(self, network: nn.Module) -> None:
        assert self._predictions is not None
        inputs = self._monitored_inputs()
        labels = torch.stack(self._labels).cpu()
        if not isinstance(inputs, Tensor) or isinstance(network, NetworkAdapter):
            prepared = ready(bare_network(network), (inputs, labels))
            network = prepared.network
            inputs = prepared.samples.inputs
        with inspection_mode(network):
            outputs = checked_outputs(network_outputs(network, inputs), len(inputs)).double().cpu()
        m, learned = memorization_stats(outputs.softmax(1), labels, self._predictions)  # m and P
        # s; an untrained network has P near 1 / C
        memorized = m / max(learned, 1.5 / outputs.shape[1])
        self._best = max(self._best, learned)
        band = 0.2  # b
        self._step_strength(
            (memorized / self._allowed - 1) / band, collapsed=learned < COLLAPSE * self._best
        )
        self.history.append((self._calls, memorized, self._allowed, self.strength))

    def _step_strength(self, error: float, *, collapsed: bool) -> None:
        """Update the strength once, unless the error is not finite (a diverging network)."""
        if not math.isfinite(error):
            return
        if collapsed:
            self.strength *= CUT
            return
        proposal = self.strength * math.exp(
            (RISE if error > 0 else FALL) * max(-1.0, min(1.0, error))
        )
        # below `least` after a cut, the strength returns by at most the largest rise per update
        floor = min(self.least, self.strength * math.exp(RISE))
        self.strength = min(self.most, max(proposal, floor))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors, by name, on which the next update depends."""
        numbers = [self._calls, self.strength, self._best, self._allowed]
        state = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
        if self._labels:
            columns = [torch.stack(column) for column in zip(*self._inputs, strict=True)]
            keys = [f"inputs.{name}" for name in self._names] or ["inputs"]
            state |= {**dict(zip(keys, columns, strict=True)), "labels": torch.stack(self._labels)}
        if self._predictions is not None:
            state["predicted"] = self._predictions
        elif self._untrained is not None:
            state |= {
                f"untrained.{name}": tensor for name, tensor in self._untrained.state_dict().items()
            }
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resume from the result of `state_dict`.

        Args:
            state: Tensors by name, as `state_dict` returned them.
        """
        calls, self.strength, self._best, self._allowed = state["numbers"].tolist()
        self._calls = int(calls)
        self.history = []
        self._inputs = []
        self._labels = []
        self._hashes = set()
        if "labels" in state:
            keys = [key for key in state if key == "inputs" or key.startswith("inputs.")]
            names = tuple(key.removeprefix("inputs.") for key in keys if key != "inputs")
            self._add_samples(tuple(state[key] for key in keys), state["labels"], names)
        self._predictions = state.get("predicted")
        self._untrained = None
        self._untrained_state = with_prefix(state, "untrained.")
