"""Training runs on subsets of the samples, each scored on unseen samples and cached in a folder."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gapscope.accuracy.extrapolation import SizedScore, mean_of_runs
from gapscope.accuracy.function_identity import identity_of, name_of
from gapscope.accuracy.learning_curve_result import SubsetRun
from gapscope.accuracy.scores import Scores, is_name_of_loss
from gapscope.accuracy.subset_designs import Design, Split
from gapscope.accuracy.subset_problems import MetricProblem, NetworkProblem
from gapscope.base.errors import DamagedFile, GapscopeError, InvalidInput
from gapscope.base.files import make_folder, read_json, to_json, write_atomically
from gapscope.base.randomness import derive_seed
from gapscope.base.specs import RunSpec
from gapscope.pools.jobs import run_cached
from gapscope.results.progress import NullProgress
from gapscope.statistics.grouped_scores import variance_of_mean

IDENTITY_FILE, ANSWERS = (
    "twin.json",
    "equal or fewer steps, scores, those of outputs, training score and its variance",
)


def _recipe(train_fn: Any) -> str:
    """Return name and identity of a training function."""
    if isinstance(train_fn, RunSpec):
        return train_fn.id
    if isinstance(train_fn, partial):
        function = train_fn.func
    else:
        function = train_fn
    return f"{name_of(function)} {identity_of(train_fn)}"


class _ContentPickler(pickle.Pickler):
    """Pickler whose bytes are the same for equal tensors, which pickle writes with the address of their memory."""

    def reducer_override(self, obj: Any) -> Any:
        """Return the content of a tensor in place of its storage."""
        if isinstance(obj, Tensor):
            return str, (identity_of(obj),)
        return NotImplemented


def _content(value: Any) -> bytes:
    """Return bytes that are the same for equal content."""
    stream = io.BytesIO()
    _ContentPickler(stream, protocol=4).dump(value)
    return stream.getvalue()


def _digest(problem: NetworkProblem | MetricProblem, groups: np.ndarray) -> str:
    digest = hashlib.sha256(groups.tobytes())
    if isinstance(problem, MetricProblem):
        # only hashed, and never read again
        try:
            content = _content((problem.rows.inputs, problem.rows.targets))
        except Exception as error:
            raise InvalidInput(
                f"With cache_dir= data must be of types that pickle takes, because they are hashed; got {error}. Pass "
                "cache_dir=None."
            ) from error
        digest.update(content)
        return digest.hexdigest()
    samples = problem.samples
    for tensor in (
        samples.inputs,
        samples.targets,
        *(() if samples.form is None else samples.form.columns),
    ):
        assert tensor is not None
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def claim_cache(
    folder: Path, problem: NetworkProblem | MetricProblem, seed: int, groups: np.ndarray
) -> None:
    """Store the identity of the runs in a folder, or raise InvalidInput for other runs."""
    identity: dict[str, Any] = {
        "recipe": _recipe(problem.train_fn),
        "seed": seed,
        "data": _digest(problem, groups),
    }
    identity["answers"] = ANSWERS
    if isinstance(problem, MetricProblem):
        identity["score"] = f"{problem.score_name} {identity_of(problem.score_function)}"
    make_folder(folder)
    path = folder / IDENTITY_FILE
    stored = _read_object(path) if path.exists() else identity
    names = dict.fromkeys([*identity, *stored])
    differences = [name for name in names if stored.get(name) != identity.get(name)]
    if differences:
        raise InvalidInput(
            f"{folder} must hold runs of the same learning curve; its {' and '.join(differences)} differ from this "
            "call's. Choose another folder (cache_dir=, --cache-dir)."
        )
    write_atomically(path, to_json(identity) + "\n")


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds (raises DamagedFile for other JSON)."""
    content = read_json(path, is_recreated=True)
    if not isinstance(content, dict):
        raise DamagedFile(
            f"{path} must hold a JSON object; got {type(content).__name__}. Delete it to recreate it."
        )
    return content


def train_and_score(
    problem: NetworkProblem | MetricProblem, seed: int, groups: np.ndarray, split: Split
) -> dict[str, Any]:
    """Train on one part with the steps of all samples, and return scores of the scored part."""
    model = problem.train(split.trained, derive_seed(seed, split.name), split.steps)
    training = problem.score(model, split.trained)
    if split.is_continued:
        assert isinstance(problem, NetworkProblem)
        unseen = problem.continued_score(model, split.scored)
    else:
        unseen = problem.score(model, split.scored, groups)
    fit = training.sized(groups[split.trained])
    answer: dict[str, Any] = {
        "scores": unseen.values.tolist(),
        "training_score": fit.mean,
        "training_variance": fit.variance,
    }
    if split.is_continued:
        answer["scores_of_outputs"] = problem.score(model, split.scored).values.tolist()
    if unseen.variance is None:
        return answer
    return answer | {"variance": unseen.variance}


class SubsetRuns:
    """Runner of splits: each once, with its scores in a folder."""

    def __init__(
        self,
        job: Any,
        groups: np.ndarray,
        folder: Path,
        workers: int,
        steps: NullProgress,
        *,
        is_kept: bool = True,
        score_range: tuple[float, float] | None = None,
    ) -> None:
        self.job = job
        self.groups = groups
        self.folder = folder
        self.workers = workers
        self.steps = steps
        self.is_kept = is_kept
        self.score_range = score_range
        self.done: dict[str, SubsetRun] = {}
        self.scores: dict[str, Scores] = {}
        self.scores_of_outputs: dict[str, np.ndarray] = {}
        self.training: dict[str, SizedScore] = {}
        self.splits: dict[str, Split] = {}

    def run(self, splits: Sequence[Split]) -> SizedScore:
        """Train the missing splits, and return the mean score over all scored samples."""
        sizes = {split.name: len(split.trained) for split in splits}
        self.steps.step(", ".join(sizes) if len(sizes) < 3 else f"{len(sizes)} folds")
        try:
            run_cached(
                {split.name: partial(self.job, split) for split in splits}, self.folder, workers=self.workers,
                on_done=lambda name, done, of: self.steps.advance(sizes[name]),
            )  # fmt: skip
        except GapscopeError as error:
            cause = error.__cause__
            if self.is_kept or not isinstance(cause, GapscopeError):
                raise
            if isinstance(cause, InvalidInput):
                raise cause from None
            raise GapscopeError(
                f"{str(cause).rstrip('.')}. All runs must succeed: correct it. With cache_dir= the finished runs are "
                "kept."
            ) from cause.__cause__
        finally:  # also after an interruption: read the finished runs
            for split in splits:
                self._read(split)
        return self.score_of([split.name for split in splits])

    def _read(self, split: Split) -> None:
        path = self.folder / f"{split.name}.json"
        if not path.exists():
            return
        answer = _read_object(path)
        scores = Scores(np.asarray(answer["scores"], dtype=float), answer.get("variance"))
        self.splits[split.name], self.scores[split.name] = split, scores
        if split.is_continued:
            self.scores_of_outputs[split.name] = np.asarray(answer["scores_of_outputs"], float)
        self.training[split.name] = SizedScore(
            len(split.trained), answer["training_score"], answer["training_variance"]
        )
        self.done[split.name] = SubsetRun(
            split.name,
            len(split.trained),
            len(split.scored),
            scores.mean,
            answer["training_score"],
            split.steps,
        )

    def score_of(self, names: Sequence[str]) -> SizedScore:
        """Return the mean score of finished runs."""
        scores = [self.scores[name] for name in names]
        trained_on = round(sum(self.done[name].trained_on for name in names) / len(names))
        values = np.concatenate([item.values for item in scores])
        variances = [item.variance for item in scores if item.variance is not None]
        if variances:
            variance = sum(variances) / len(names) ** 2
        else:
            variance = variance_of_mean(
                values, np.concatenate([self.groups[self.splits[name].scored] for name in names])
            )
        return SizedScore(trained_on, float(values.mean()), variance)

    def training_score_of(self, names: Sequence[str]) -> SizedScore:
        """Return the mean score of finished runs on the samples that they were trained on."""
        return mean_of_runs([self.training[name] for name in names])

    def suspect_loss(
        self, runs: Sequence[SubsetRun], score_name: str
    ) -> tuple[str, tuple[str, ...]]:
        """Return the reason to abstain if a score is a loss, or else a note if it may be one.

        It is one if training samples score significantly lower than unseen ones, or lower and it has the name of a
        loss. It may be one if it has the name alone; or if training samples score lower by chance, and either more
        samples score lower as well or training samples have exactly 0, as without an error.

        Args:
            runs: Finished runs.
            score_name: Name of the score.
        """
        names = [run.name for run in runs]
        fit = self.training_score_of(names)
        unseen = self.score_of(names)
        has_name = is_name_of_loss(score_name) and unseen.mean > 0
        is_lower = fit.mean < unseen.mean
        smallest = min(run.trained_on for run in runs)
        small = [run.score for run in runs if run.trained_on == smallest]
        large = [run.score for run in runs if run.trained_on > smallest]
        falls = bool(large) and np.mean(large) < np.mean(small)
        text = (
            f"samples of training score {fit.mean:.3g}, unseen ones {unseen.mean:.3g}. Larger must be better: is "
            "it a loss? Return its negative"
        )
        if has_name:
            text += ", or rename it"
        if is_lower and (has_name or fit.is_clearly_below(unseen, by=0.0)):
            return text, ()
        if has_name:
            return "", (f"The score has the name of a loss, {score_name!r}; {text}.",)
        if is_lower and (falls or fit.mean == 0):
            return "", (f"{text[0].upper()}{text[1:]}.",)
        return "", ()

    def runs_of(self, design: Design) -> tuple[SubsetRun, ...]:
        """Return the finished runs of a design, without those of a continued one that was not valid."""
        runs = tuple(self.done.values())
        of_design = tuple(
            run for run in runs if self.splits[run.name].is_continued == design.is_continued
        )
        return of_design or runs

    @property
    def are_fractions(self) -> bool:
        """Whether scores lie between 0 and 1: by their range if it is known, else those that were observed."""
        if self.score_range is not None:
            return self.score_range == (0.0, 1.0)
        return all(
            bool(((item.values >= 0) & (item.values <= 1)).all()) for item in self.scores.values()
        )

    @property
    def cost(self) -> float:
        """Optimizer steps, in multiples of a training run on all samples."""
        return sum(item.steps for item in self.done.values())
