"""Positions (tokens, pixels) as single predictions: their labels, features, and predictions without their sample.

Positions of one sample share its content, so that each is predicted by a fit without its whole sample
(`gapscope.statistics.leave_group_out`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.budget import MAX_BYTES
from gapscope.base.errors import InvalidInput
from gapscope.base.label_marks import check_no_mark
from gapscope.base.label_numbers import check_class_numbers
from gapscope.base.position_labels import labels_on_grid
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED, check_none_missing
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.losses import evaluate
from gapscope.inspection.outputs import BACKWARD_CHUNK_SIZE
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import centred_features
from gapscope.statistics.baselines import RIDGES, input_spectra, linear_spectrum, target_matrix
from gapscope.statistics.intervals import wilson_interval
from gapscope.statistics.kernel_ridge import Spectrum
from gapscope.statistics.leave_group_out import select_held_out

FREQUENCIES, NEIGHBOURHOOD = "label frequencies of each token", "linear ridge on 3 x 3 pixels"


@dataclass(frozen=True)
class LabelledPositions:
    """Positions that have a label, at most 50,000 of them.

    Attributes:
        samples: Index of the sample of each position, [m], ascending.
        places: Its indices within the sample, [m, p]: one for tokens, row and column for pixels.
        labels: Its label, [m].
        n_labelled: Number of all positions that have a label.
        first_place: Place of the first position in the labels that were passed: 1 for a causal language model, which
            has no label for the first token.
        groups: Group of each sample, [n], whose samples are predicted without each other; None for none.
    """

    samples: Int[Tensor, " m"]
    places: Int[Tensor, "m p"]
    labels: Int[Tensor, " m"]
    n_labelled: int
    first_place: int = 0
    groups: Int[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def passed_places(self) -> Int[Tensor, "m p"]:
        """Indices within the labels that were passed, [m, p]."""
        return self.places + self.first_place

    @cached_property
    def held_out(self) -> Int[Tensor, " m"]:
        """Number of what each position is predicted without: its group, or its sample."""
        if self.groups is None:
            return self.samples
        return self.groups.cpu()[self.samples]

    @property
    def how(self) -> str:
        """How positions are predicted, in a word."""
        if self.groups is None:
            return "leave-one-sample-out"
        return "leave-one-group-out"

    @cached_property
    def n_classes(self) -> int:
        """Number of classes: the largest label plus one."""
        return int(self.labels.max()) + 1

    @property
    def note(self) -> str:
        """A sentence on positions that are not used (empty if there are none)."""
        if len(self) == self.n_labelled:
            return ""
        return f"{len(self):,} of {self.n_labelled:,} labelled positions are used, drawn at random in every sample."

    def take(self, values: Tensor) -> Tensor:
        """Return the rows [m, ...] of values [n, *grid, ...] at the positions."""
        return values[(self.samples, *self.places.unbind(1))]


def labelled_positions(
    targets: Int[Tensor, "n ..."],
    *,
    seed: int,
    most: int = 50_000,  # with 1,000 landmarks they take 400 MB in float64
) -> LabelledPositions:
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
    for start in range(0, len(samples), BACKWARD_CHUNK_SIZE):
        chosen = torch.arange(start, min(start + BACKWARD_CHUNK_SIZE, len(samples)))
        part = samples.subset(chosen.to(samples.inputs.device))
        features = extract_features(network, part, pooling="none")
        place = features.place
        # the last token of a causal language model predicts no token of the sample
        values = features.values
        if getattr(network, "next_position", False):
            values = values[:, :-1]
        if tuple(values.shape[1:-1]) != grid:
            got = list(values.shape[1:-1])
            needed = list(grid)
            raise InvalidInput(
                f"Features are needed for every labelled position, {needed}; {place} has {got}. Pass features "
                f"[{len(samples)}, {', '.join(map(str, grid))}, d] of another layer: gs.embed(network, data, layer=, "
                "pooling='none')."
            )
        is_inside = (positions.samples >= start) & (positions.samples < start + BACKWARD_CHUNK_SIZE)
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


def token_frequencies(
    tokens: Int[Tensor, " m"], positions: LabelledPositions
) -> Float[Tensor, "m c"]:
    """Return the frequencies of the labels of each token in all other samples, in float64.

    The frequencies of all labels count as one more position of each token.

    Args:
        tokens: Token id at each position.
        positions: The positions.
    """
    n_classes = positions.n_classes
    labels = target_matrix(positions.labels, n_classes)
    _, token = tokens.cpu().unique(return_inverse=True)

    def totals(group: Tensor) -> Tensor:
        """Return the sums of the labels of each position's group."""
        sums = torch.zeros(int(group.max()) + 1, n_classes, dtype=torch.float64)
        return sums.index_add_(0, group, labels)[group]

    _, pair = torch.stack([positions.held_out, token]).unique(dim=1, return_inverse=True)

    # the frequencies of all labels count as one position of the token
    others = totals(token) - totals(pair) + labels.mean(0)
    return others / others.sum(1, keepdim=True)


def _tokens(samples: Samples) -> Tensor | None:
    """Return the token ids [n, T] of samples with one label per token, None without.

    With labels of the next token there is one id more, which is dropped.
    """
    n, *grid = samples.y.shape
    shapes = ()
    if len(grid) == 1:
        shapes = ((n, *grid), (n, grid[0] + 1))
    ids = [
        part
        for part in samples.parts
        if not part.is_floating_point() and part.shape in shapes and int(part.max()) > 1
    ]
    if ids:
        return ids[0][:, : grid[0]].cpu()
    return None


def _score(name: str, kernel: Spectrum, positions: LabelledPositions) -> dict[str, Tensor]:
    targets = target_matrix(positions.labels, positions.n_classes).to(kernel.device)
    _, scores = select_held_out(kernel, targets, RIDGES, positions.held_out.to(kernel.device))
    return {name: scores.cpu()}


def input_scores(samples: Samples, positions: LabelledPositions) -> dict[str, Float[Tensor, "m c"]]:
    """Return scores of the classes without a network, each by the other samples alone (empty if nothing applies).

    Tokens are predicted by the frequencies of their labels, pixels by ridge regression on the 3 x 3 pixels around, and
    positions with values of their own, [n, ..., d], such as embeddings, by ridge regression on these.
    """
    inputs = samples.inputs
    if (
        samples.has_one_input
        and inputs.is_floating_point()
        and inputs.shape[:-1] == samples.y.shape
    ):
        return feature_scores(positions.take(inputs.cpu()), positions, "the inputs")
    tokens = _tokens(samples)
    if tokens is not None:
        return {FREQUENCIES: token_frequencies(positions.take(tokens), positions)}
    if samples.has_one_input and inputs.shape == samples.y.shape:
        inputs = inputs[:, None]
    around = None
    if samples.has_one_input:
        around = _neighbourhoods(inputs, positions)
    if around is None or not around.shape[1]:
        return {}
    return _score(NEIGHBOURHOOD, linear_spectrum(around), positions)


def feature_scores(
    features: Float[Tensor, "m d"], positions: LabelledPositions, what: str
) -> dict[str, Float[Tensor, "m c"]]:
    """Return scores of the classes by ridge regression on features, each by the other samples alone.

    Args:
        features: Features of the positions.
        positions: The positions.
        what: The features in words.
    """
    values = centred_features(features)
    scores: dict[str, Tensor] = {}
    for name, kernel in input_spectra(values, what):
        scores |= _score(name, kernel, positions)
    return scores


def require_scores(scores: Mapping[str, Tensor], samples: Samples) -> None:
    """Raise InvalidInput if no method predicts the positions."""
    if not scores:
        advice = "Pass a network, or features."
        if samples.unsettled is not None:
            check_none_missing(samples.unsettled)
            advice += ' If the targets are no classes, pass gs.Samples(x, y, task="regression").'
        raise InvalidInput(
            "Without a network, positions are predicted from token ids, pictures [n, C, H, W] or features [n, ..., d]; "
            f"got inputs {list(samples.inputs.shape)}. {advice}"
        )


def prepare_positions(
    network: nn.Module | None,
    samples: Samples,
    *,
    seed: int,
    groups: Int[Tensor, " n"] | None = None,
) -> tuple[Ready | None, Samples, LabelledPositions]:
    """Return the network with its samples, validated, and their labelled positions.

    Args:
        network: The network, or None.
        samples: Samples with one label per position.
        seed: Seed of the positions that are drawn, if there are many.
        groups: Group of each sample, 0, 1, ...; None for none.

    Raises:
        InvalidInput: The targets do not fit the outputs, all labels are of one class, or they are numbers far larger
            than the number of classes, or a mark such as 255.
    """
    prepared = None
    if network is None:
        labels = samples.y
        if samples.has_one_input:
            labels = labels_on_grid(labels, samples.inputs)
        labelled = samples.with_position_labels(labels)
    else:
        prepared = ready(network, samples, needs=("outputs",))
        labelled = prepared.samples
    positions = replace(labelled_positions(labelled.y, seed=seed), groups=groups)
    if prepared is None and not samples.class_names:
        check_no_mark(positions.labels)
    # scores in float64, with a column per number of a class
    if prepared is None and 8 * len(positions) * positions.n_classes > MAX_BYTES:
        check_class_numbers(positions.labels)
    if len(positions.labels.unique()) < 2:
        raise InvalidInput(
            "Positions need labels of two classes or more; got one. Pass other samples too."
        )
    if samples.y.ndim == labelled.y.ndim:  # else an axis of the labels was removed
        positions = replace(positions, first_place=samples.y.shape[1] - labelled.y.shape[1])
    return prepared, labelled, positions


def position_scores(
    network: Ready | None, samples: Samples, positions: LabelledPositions
) -> tuple[dict[str, Float[Tensor, "m c"]], list[str]]:
    """Return held-out scores of the classes by method, those that need no network first, and notes.

    The features of a network that predicts these labels far better than leave-one-sample-out on the inputs are not
    used, because it has fitted them.

    Args:
        network: The network, `ready` with its samples; None for the methods that need none.
        samples: The samples, with one label per position.
        positions: `labelled_positions` of the targets.
    """
    notes = []
    if positions.note:
        notes = [positions.note]
    scores = input_scores(samples, positions)
    if network is None:
        return scores, notes
    most_frequent = float(positions.labels.unique(return_counts=True)[1].max()) / len(positions)
    known = [
        float((part.argmax(1) == positions.labels).double().mean()) for part in scores.values()
    ]
    without = max([most_frequent, *known])
    own = 0.0  # outputs that do not fit the labels predict none
    if not network.mismatch:
        own = evaluate(network.network, network.samples)["accuracy"]
    # positions of a sample are not independent: as few as there are samples, or groups
    n_independent = len(positions.held_out.unique())
    if own > wilson_interval(without, n_independent, 0.99)[1]:
        notes.append(
            f"The network predicts {own:.1%} of these labels, {positions.how} without it {without:.1%}: it may "
            "have been trained on them, so that its features were not used. If it was not, pass its features: "
            "gs.embed(network, data, pooling='none')."
        )
        return scores, notes
    features, place = features_at(network, positions)
    return scores | feature_scores(features, positions, f"the features ({place})"), notes
