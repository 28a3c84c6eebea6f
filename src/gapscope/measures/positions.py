"""Positions (tokens, pixels) as single predictions: their labels, features, and predictions without their sample.

Positions of one sample share its content, so that each is predicted by a fit without its whole sample
(`gapscope.statistics.leave_group_out`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import centred_features
from gapscope.statistics.baselines import RIDGES, linear_spectrum, rbf_spectrum, target_matrix
from gapscope.statistics.intervals import wilson_interval
from gapscope.statistics.kernel_ridge import Spectrum
from gapscope.statistics.leave_group_out import select_held_out

# 50,000 positions with 1,000 landmarks take 400 MB in float64.
MAX_POSITIONS = 50_000
# Samples of one forward pass for features of positions, which are larger than those of samples.
SAMPLES_PER_PASS = 256
# Smallest probability of a class that the frequencies of a token give.
PRIOR = 1.0
FREQUENCIES, NEIGHBOURHOOD = "label frequencies of each token", "linear ridge on 3 x 3 pixels"


@dataclass(frozen=True)
class LabelledPositions:
    """Positions that have a label, at most 50,000 of them.

    Attributes:
        samples: Index of the sample of each position, [m], ascending.
        places: Its indices within the sample, [m, p]: one for tokens, row and column for pixels.
        labels: Its label, [m].
        n_labelled: Number of all positions that have a label.
    """

    samples: Int[Tensor, " m"]
    places: Int[Tensor, "m p"]
    labels: Int[Tensor, " m"]
    n_labelled: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def note(self) -> str:
        """A sentence on positions that are left out (empty if there are none)."""
        if len(self) == self.n_labelled:
            return ""
        return f"{len(self):,} of {self.n_labelled:,} labelled positions are used, drawn at random in every sample."

    def take(self, values: Tensor) -> Tensor:
        """Return the rows [m, ...] of values [n, *grid, ...] at the positions."""
        return values[(self.samples, *self.places.unbind(1))]


def labelled_positions(targets: Int[Tensor, "n ..."], *, seed: int, most: int = MAX_POSITIONS) -> LabelledPositions:
    """Return the positions whose label is not -100; of more than `most`, equally many at random of every sample.

    Args:
        targets: Labels [n, ...], -100 where there is none.
        seed: Seed of the drawing.
        most: Largest number of positions.
    """
    targets = targets.cpu()
    where = torch.nonzero(targets != IGNORED)
    n_labelled = len(where)
    if n_labelled > most:
        order = torch.randperm(n_labelled, generator=make_generator(seed, "positions"))
        order = order[where[order, 0].argsort(stable=True)]
        counts = where[:, 0].bincount(minlength=len(targets))
        starts = counts.cumsum(0) - counts
        rank = torch.arange(n_labelled) - starts[where[order, 0]]
        per_sample = max(most // len(targets), 1)
        where = where[order[rank < per_sample].sort().values]
    return LabelledPositions(where[:, 0], where[:, 1:], targets[tuple(where.unbind(1))], n_labelled)


def features_at(prepared: Ready, positions: LabelledPositions) -> tuple[Float[Tensor, "m d"], str]:
    """Return the features of positions, and the place in the network that they come from.

    Raises:
        InvalidInput: The features have other positions than the labels.
    """
    samples = prepared.samples
    network = with_data_statistics(prepared.network, samples.inputs)
    grid = tuple(samples.y.shape[1:])
    rows: list[Tensor] = []
    place = ""
    for start in range(0, len(samples), SAMPLES_PER_PASS):
        chosen = torch.arange(start, min(start + SAMPLES_PER_PASS, len(samples)))
        part = samples.subset(chosen.to(samples.inputs.device))
        features = extract_features(network, part, pooling="none")
        place = features.place
        # the last token of a causal language model predicts no token of the sample
        values = features.values[:, :-1] if getattr(network, "next_position", False) else features.values
        if tuple(values.shape[1:-1]) != grid:
            got, needed = list(values.shape[1:-1]), list(grid)
            raise InvalidInput(
                f"Features are needed for every labelled position, {needed}; {place} has {got}. Pass features "
                f"[{len(samples)}, {', '.join(map(str, grid))}, d] of another layer: gs.embed(network, data, layer=, "
                "pooling='none')."
            )
        is_inside = (positions.samples >= start) & (positions.samples < start + SAMPLES_PER_PASS)
        index = (positions.samples[is_inside] - start, *positions.places[is_inside].unbind(1))
        rows.append(values[index])
    return torch.cat(rows), place


def _neighbourhoods(inputs: Tensor, positions: LabelledPositions) -> Tensor | None:
    """Return the 3 x 3 pixels around positions of pictures [n, C, H, W], None for other inputs."""
    grid = positions.places.shape[1]
    if inputs.ndim != 4 or grid != 2 or not inputs.is_floating_point():
        return None
    if bool((positions.places.amax(0) >= torch.tensor(inputs.shape[2:])).any()):
        return None
    padded = F.pad(inputs.detach().cpu().double(), (1, 1, 1, 1), mode="replicate")
    row, column = positions.places.unbind(1)
    around = [padded[positions.samples, :, row + i, column + j] for i in range(3) for j in range(3)]
    values = torch.cat(around, 1)
    spread = values.std(0, correction=0)
    is_varying = spread > 1e-9
    return (values[:, is_varying] - values[:, is_varying].mean(0)) / spread[is_varying]


def token_frequencies(tokens: Int[Tensor, " m"], positions: LabelledPositions, n_classes: int) -> Float[Tensor, "m c"]:
    """Return the frequencies of the labels of each token in all other samples, in float64.

    The frequencies of all labels count as one more position of each token.

    Args:
        tokens: Token id at each position.
        positions: The positions.
        n_classes: Number of classes.
    """
    labels = target_matrix(positions.labels, n_classes)
    _, token = tokens.cpu().unique(return_inverse=True)
    counts = torch.zeros(int(token.max()) + 1, n_classes, dtype=torch.float64).index_add_(0, token, labels)
    _, pair = torch.stack([positions.samples, token]).unique(dim=1, return_inverse=True)
    own = torch.zeros(int(pair.max()) + 1, n_classes, dtype=torch.float64).index_add_(0, pair, labels)
    others = counts[token] - own[pair] + PRIOR * labels.mean(0)
    return others / others.sum(1, keepdim=True)


def _tokens(samples: Samples) -> Tensor | None:
    """Return the token ids [n, T] of samples with one label per token, None without.

    With labels of the next token there is one id more, which is dropped.
    """
    parts = (samples.inputs,) if samples.form is None else samples.form.unpack(samples.inputs)
    n, *grid = samples.y.shape
    shapes = ((n, *grid), (n, grid[0] + 1)) if len(grid) == 1 else ()
    ids = [part for part in parts if not part.is_floating_point() and part.shape in shapes and int(part.max()) > 1]
    return ids[0][:, : grid[0]].cpu() if ids else None


def _score(name: str, kernel: Spectrum, positions: LabelledPositions, n_classes: int) -> dict[str, Tensor]:
    targets = target_matrix(positions.labels, n_classes).to(kernel.device)
    _, scores = select_held_out(kernel, targets, RIDGES, positions.samples.to(kernel.device))
    return {name: scores.cpu()}


def input_scores(samples: Samples, positions: LabelledPositions, n_classes: int) -> dict[str, Float[Tensor, "m c"]]:
    """Return scores of the classes without a network, each by the other samples alone (empty if nothing applies).

    Tokens are predicted by the frequencies of their labels, pixels by ridge regression on the 3 x 3 pixels around, and
    positions with values of their own, [n, ..., d], such as embeddings, by ridge regression on these.
    """
    inputs = samples.inputs
    if samples.form is None and inputs.is_floating_point() and inputs.shape[:-1] == samples.y.shape:
        return feature_scores(positions.take(inputs.cpu()), positions, n_classes, "the inputs")
    tokens = _tokens(samples)
    if tokens is not None:
        return {FREQUENCIES: token_frequencies(positions.take(tokens), positions, n_classes)}
    if samples.form is None and inputs.shape == samples.y.shape:
        inputs = inputs[:, None]
    around = _neighbourhoods(inputs, positions) if samples.form is None else None
    if around is None or not around.shape[1]:
        return {}
    return _score(NEIGHBOURHOOD, linear_spectrum(around), positions, n_classes)


def feature_scores(
    features: Float[Tensor, "m d"], positions: LabelledPositions, n_classes: int, what: str
) -> dict[str, Float[Tensor, "m c"]]:
    """Return scores of the classes by ridge regression on features, each by the other samples alone.

    Args:
        features: Features of the positions.
        positions: The positions.
        n_classes: Number of classes.
        what: The features in words.
    """
    values = centred_features(features)
    linear = _score(f"linear ridge on {what}", linear_spectrum(values), positions, n_classes)
    return linear | _score(f"RBF ridge on {what}", rbf_spectrum(values), positions, n_classes)


def _own_accuracy(prepared: Ready) -> float:
    """Return the accuracy of the network's own outputs at the labelled positions (0 if they do not fit)."""
    if prepared.mismatch:
        return 0.0
    samples = prepared.samples
    with inspection_mode(prepared.network):
        outputs = network_outputs(prepared.network, samples.inputs).cpu()
    labels = samples.y.cpu()
    return float(samples.task.correct(outputs, labels)[labels != IGNORED].double().mean())


def position_scores(
    network: Ready | None, samples: Samples, positions: LabelledPositions, n_classes: int
) -> tuple[dict[str, Float[Tensor, "m c"]], list[str]]:
    """Return held-out scores of the classes by method, those that need no network first, and notes.

    The features of a network that predicts these labels far better than leave-one-sample-out on the inputs are not
    used, because it has fitted them.

    Args:
        network: The network, `ready` with its samples; None for the methods that need none.
        samples: The samples, with one label per position.
        positions: `labelled_positions` of the targets.
        n_classes: Number of classes.
    """
    notes = [positions.note] if positions.note else []
    scores = input_scores(samples, positions, n_classes)
    if network is None:
        return scores, notes
    most_frequent = float(positions.labels.bincount().max()) / len(positions)
    known = [float((part.argmax(1) == positions.labels).double().mean()) for part in scores.values()]
    without = max([most_frequent, *known])
    own = _own_accuracy(network)
    # positions of a sample are not independent: as few as there are samples
    if own > wilson_interval(without, len(samples), 0.99)[1]:
        notes.append(
            f"The network predicts {own:.1%} of these labels, leave-one-sample-out without it {without:.1%}: it may "
            "have been trained on them, so that its features were not used. If it was not, pass its features: "
            "gs.embed(network, data, pooling='none')."
        )
        return scores, notes
    features, place = features_at(network, positions)
    return scores | feature_scores(features, positions, n_classes, f"the features {place}"), notes
