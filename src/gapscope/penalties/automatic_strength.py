r"""A penalty's strength that sets itself, in a closed loop on what the network learns by heart; no validation labels.

**Before training.** The first `watched` samples of the mini-batches are predicted from each other, each without its own
label, by the untrained network's kernel (`gapscope.labels`). S are those whose label is not the one predicted, and
$\hat r$ is the rate of wrong labels; $\pi = \min(1, \hat r n / |S|)$ is then the share of S that is wrong.

**While training**, at every `every`-th call, one forward pass gives each watched sample's probabilities. With p the
probability of its own label and $\bar p$ the mean probability of the classes that are neither its label nor the one
predicted, what is known of labels that nothing speaks for is

$$m = \operatorname{mean}_S (p - \bar p), \qquad P = \operatorname{mean}_{\text{not } S} p .$$

Right labels that were predicted wrongly are learnt too, more slowly than others: they may make up a share
$(1 - \pi) \kappa$ of P. The rest is learnt by heart:

$$e = \min(1, \hat r / r_0) \left( \frac{m}{\max(P, 1.5 / C)} - (1 - \pi) \kappa \right) .$$

The strength begins at `least` and is multiplied by $\exp(g\, \mathrm{clip}(e / \tau - 1, -1, 1))$ with g = 1 above
$\tau$ and 0.35 below, between `least` and `most`. A guard divides it by four, below `least` too, whenever P is less
than half of its maximum: the penalty then undoes what was learnt.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.base.errors import InvalidInput, check_range
from gapscope.inspection.outputs import checked_outputs, inspecting, network_outputs, unwrapped
from gapscope.labels.suspects import FEWEST_SAMPLES, judged_before_training

# chosen on the tuning runs of the study `automatic_strength`, before any network that judges them was trained
KAPPA = 0.5
TOLERANCE = 0.03
FULL_NOISE = 0.1
RISE, FALL = 1.0, 0.35
GUARD, GUARDED = 0.5, 0.25
# from here on the penalty costs networks with normalisation layers accuracy (docs/gradient-similarity.md)
MUCH_WHERE_NORMALISED = 0.001


def _check_plain(network: nn.Module, least: float) -> None:
    layer = next((type(module).__name__ for module in network.modules() if "Norm" in type(module).__name__), None)
    if layer is not None and least > MUCH_WHERE_NORMALISED:
        raise InvalidInput(
            f"An automatic strength that begins at {least:g} must be that of a network without normalisation layers, "
            f"which lose accuracy from {MUCH_WHERE_NORMALISED:g} to 0.003 on; got {layer}. Pass a number, or "
            "AutomaticStrength(least=0.0001, most=0.003), which is not judged yet."
        )


def memorised(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], predicted: Int[Tensor, " n"]
) -> tuple[float, float]:
    """Return m and P of this file.

    Args:
        probabilities: What the network gives the classes.
        labels: Labels that are trained on.
        predicted: What the others say instead.

    Returns:
        m (0 where all labels are as predicted) and P (0 where none is).
    """
    own, other = (probabilities.gather(1, chosen[:, None]).squeeze(1) for chosen in (labels, predicted))
    suspect = labels != predicted
    beside = (1 - own - other) / max(probabilities.shape[1] - 2, 1)
    m = float((own - beside)[suspect].mean()) if bool(suspect.any()) else 0.0
    return m, float(own[~suspect].mean()) if bool((~suspect).any()) else 0.0


class AutomaticStrength:
    r"""Sets a penalty's strength while the network trains; the rule is that of this file.

    `GradientSimilarityPenalty("auto")` has one with these settings. It must see class labels, 100 samples or more,
    and one process. Its settings are for networks without normalisation layers; others it refuses, unless `least` is
    at most 0.001, which is not judged yet. Where inputs are augmented at random an epoch must have `watched` samples
    or more, else one sample would be met twice and speak for itself. It costs one kernel of the watched samples, then
    a forward pass of these at every `every`-th call. Its state (`state_dict` of the penalty) holds the watched
    samples, so that a resumed training goes on as if unbroken.

    Args:
        watched: Samples that are watched.
        every: Calls from one look to the next.
        least: Strength at the beginning; it falls below it only where the penalty undoes what was learnt.
        most: The strength never exceeds it.

    Attributes:
        strength: The strength now.
        history: (call, m / P, e, strength) at each look.
    """

    def __init__(self, *, watched: int = 512, every: int = 10, least: float = 0.003, most: float = 0.02) -> None:
        check_range("watched of AutomaticStrength", watched, FEWEST_SAMPLES)
        check_range("every of AutomaticStrength", every, 1)
        check_range("least of AutomaticStrength", least, 0, low_open=True)
        check_range("most of AutomaticStrength (at least `least`)", most, least)
        self.watched, self.every = watched, every
        self.least, self.most = least, most
        self.strength = least
        self.history: list[tuple[int, float, float, float]] = []
        self._calls = 0
        self._best = 0.0
        self._untrained: nn.Module | None = None
        self._kept: dict[str, Tensor] = {}
        self._inputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._seen: set[int] = set()
        self._predicted: Int[Tensor, " n"] | None = None
        self._weight, self._allowed = 0.0, 0.0

    def before_pass(self, network: nn.Module) -> float:
        """Look at the network if it is time, before its forward pass.

        Args:
            network: The network; it is left as it was.

        Returns:
            The strength of this pass.

        Raises:
            InvalidInput: The network is trained by several processes, or has normalisation layers, for which `least` is
                too much.
        """
        if isinstance(network, DistributedDataParallel):
            raise InvalidInput(
                "An automatic strength must be that of one process; got DistributedDataParallel, where each would find "
                "its own. Pass a number."
            )
        if self._predicted is None:
            if self._untrained is None:
                _check_plain(network, self.least)
                self._untrained = copy.deepcopy(unwrapped(network))
                if self._kept:
                    self._untrained.load_state_dict(self._kept)
        elif self._calls % self.every == 0:
            self._look(network)
        self._calls += 1
        return self.strength

    def after_pass(self, inputs: Tensor, targets: Tensor | None) -> None:
        """Keep the mini-batch's samples, until there are enough of them.

        Args:
            inputs: The mini-batch.
            targets: Its class labels.

        Raises:
            InvalidInput: There are no class labels, or too few samples.
        """
        if self._predicted is not None:
            return
        if targets is None or targets.is_floating_point() or targets.ndim != 1:
            given = "none" if targets is None else f"{targets.dtype} {list(targets.shape)}"
            raise InvalidInput(
                f"strength 'auto' needs class labels, int64 [n], at every call; got {given}. Call penalty(network, x, "
                "y), or pass a number: for a regression the strength does not set itself."
            )
        known = len(self._seen)
        self._keep(inputs.detach(), targets.detach())
        if len(self._labels) >= self.watched or len(self._seen) == known:
            self._judge()

    def _keep(self, inputs: Tensor, labels: Tensor) -> None:
        """Samples that were not met before; the copies do not share the batch's memory."""
        for sample, label in zip(inputs, labels, strict=True):
            mark = hash(sample.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
            if mark not in self._seen and len(self._labels) < self.watched:
                self._seen.add(mark)
                self._inputs.append(sample.clone())
                self._labels.append(label.clone())

    def _judge(self) -> None:
        """Predict the watched samples from each other, by the untrained network."""
        if len(self._labels) < FEWEST_SAMPLES:
            raise InvalidInput(
                f"strength 'auto' needs {FEWEST_SAMPLES} different samples or more; the training has "
                f"{len(self._labels)}. Pass a number."
            )
        assert self._untrained is not None
        labels = torch.stack(self._labels).cpu()
        judged = judged_before_training(self._untrained, (torch.stack(self._inputs), labels))
        predicted = torch.empty_like(labels)
        predicted[judged.suspects.order] = judged.suspects.likelier
        suspects = float((predicted != labels).double().mean())
        wrong = min(1.0, judged.noise.rate / max(suspects, 1e-9))
        self._weight, self._allowed = min(1.0, judged.noise.rate / FULL_NOISE), (1 - wrong) * KAPPA
        self._predicted, self._untrained, self._kept = predicted, None, {}

    def _look(self, network: nn.Module) -> None:
        assert self._predicted is not None
        inputs, labels = torch.stack(self._inputs), torch.stack(self._labels).cpu()
        with inspecting(network):
            outputs = checked_outputs(network_outputs(network, inputs), len(inputs)).double().cpu()
        m, ordinary = memorised(outputs.softmax(1), labels, self._predicted)
        share = m / max(ordinary, 1.5 / outputs.shape[1])
        excess = self._weight * (share - self._allowed)
        self._best = max(self._best, ordinary)
        self._move(excess / TOLERANCE - 1, collapsed=ordinary < GUARD * self._best)
        self.history.append((self._calls, share, excess, self.strength))

    def _move(self, error: float, *, collapsed: bool) -> None:
        """Take one step of the strength; an error that is not finite (a diverging network) takes none."""
        if not math.isfinite(error):
            return
        if collapsed:
            self.strength *= GUARDED
            return
        grown = self.strength * math.exp((RISE if error > 0 else FALL) * max(-1.0, min(1.0, error)))
        self.strength = min(self.most, max(grown, min(self.least, self.strength * math.exp(RISE))))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next look depends on, tensors by name; while samples are collected the first weights."""
        numbers = [self._calls, self.strength, self._best, self._weight, self._allowed]
        state = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
        if self._labels:
            state |= {"inputs": torch.stack(self._inputs), "labels": torch.stack(self._labels)}
        if self._predicted is not None:
            state["predicted"] = self._predicted
        elif self._untrained is not None:
            state |= {f"untrained.{name}": tensor for name, tensor in self._untrained.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned.

        Args:
            state: The state.
        """
        calls, self.strength, self._best, self._weight, self._allowed = state["numbers"].tolist()
        self._calls, self.history = int(calls), []
        self._inputs, self._labels, self._seen = [], [], set()
        if "labels" in state:
            self._keep(state["inputs"], state["labels"])
        self._predicted = state.get("predicted")
        self._untrained = None
        self._kept = {
            name.removeprefix("untrained."): tensor for name, tensor in state.items() if name.startswith("untrained.")
        }


def strength_of(given: float | str | AutomaticStrength, penalty: str) -> tuple[float, AutomaticStrength | None]:
    """Read the `strength` of a penalty.

    Args:
        given: A number, "auto", or an AutomaticStrength.
        penalty: Name of its class, for the message.

    Returns:
        The strength to begin with, and what sets it, if anything does.

    Raises:
        InvalidInput: It is a negative number, or another word.
    """
    if isinstance(given, str):
        if given != "auto":
            raise InvalidInput(f"strength of {penalty} must be a number, 0 or larger, or 'auto'; got {given!r}.")
        given = AutomaticStrength()
    if isinstance(given, AutomaticStrength):
        return given.strength, given
    check_range(f"strength of {penalty}", given, 0)
    return given, None
