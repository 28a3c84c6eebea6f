"""Specification of one trained network, whose hash is the run's id."""

from __future__ import annotations

import functools
import hashlib
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NoReturn, Self

from gapscope.base.errors import InvalidInput, check_choice, check_range, did_you_mean
from gapscope.base.options import coerce, from_mapping
from gapscope.base.type_guards import is_list_or_tuple, is_mapping

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "step", "exponential", "cyclical")
AUGMENTATIONS = ("none", "flip_shift_rotate")
INITIALIZATIONS = ("torch", "standard_normal", "xavier_uniform", "he_uniform", "he_normal")
PRECISIONS = ("float32", "mixed")
NORMALIZATIONS = ("batch", "ghost", "population", "mean_only", "variance_only", "none")


@functools.cache
def _hints(spec: type) -> dict[str, Any]:
    return typing.get_type_hints(spec)


@functools.cache
def _default(factory: Callable[[], Any]) -> Any:
    """Return a default factory that creates its value once (specs are immutable)."""
    return factory()


@dataclass(frozen=True, kw_only=True)
class _BaseSpec:
    """Base of all specs: coercion to declared types, plain dictionaries, strict keys."""

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for item in fields(self):
            value = coerce(
                f"{type(self).__name__}.{item.name}", getattr(self, item.name), hints[item.name]
            )
            object.__setattr__(self, item.name, value)
        self._check()

    def _check(self) -> None:
        """Raise InvalidInput for values out of range."""

    @functools.cached_property
    def non_default(self) -> dict[str, Any]:
        """Settings that differ from their defaults, nested, integral floats as integers."""
        return _canonical(self.to_dict(omit_defaults=True))

    def to_dict(self, *, omit_defaults: bool = False) -> dict[str, Any]:
        """Return nested JSON values.

        Args:
            omit_defaults: Whether settings that have their default are omitted.
        """
        content: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.default_factory is MISSING:
                default = item.default
            else:
                default = _default(item.default_factory)
            if omit_defaults and value == default:
                continue
            content[item.name] = _to_builtin(value, omit_defaults)
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Build from JSON-serializable values (raises InvalidInput for unknown keys).

        Args:
            content: Name of a setting -> its value, as `to_dict` returns them; others have their defaults.
        """
        return from_mapping(cls, content, cls.__name__)


def _to_builtin(value: Any, omit_defaults: bool) -> Any:
    if isinstance(value, _BaseSpec):
        return value.to_dict(omit_defaults=omit_defaults)
    if is_mapping(value):
        return {key: _to_builtin(item, omit_defaults) for key, item in value.items()}
    if is_list_or_tuple(value):
        return [_to_builtin(item, omit_defaults) for item in value]
    return value


def _canonical(value: Any) -> Any:
    """Convert integral floats to integers, so that 1 and 1.0 are equal."""
    if is_mapping(value):
        return {key: _canonical(item) for key, item in value.items()}
    if is_list_or_tuple(value):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True, kw_only=True)
class DataSpec(_BaseSpec):
    """Training data and their corruption (training split only, unless stated).

    Attributes:
        name: Name of the data set, as in `gapscope data list`.
        options: Settings of the data set itself (for example `noise` of the two circles).
        train_size: Number of training samples, sampled without replacement; None for all.
        test_size: The same for the test split; None for all.
        balanced: Whether every class gets the same number of training samples.
        blur_severity: Motion blur of the training images, 1 to 5 as in MNIST-C; 0 is none.
        label_noise: Fraction of training labels replaced by another class, exactly round(rate * n) of them.
        label_noise_may_keep_class: Whether the new label is sampled from all classes, including the true one.
        target_noise: Standard deviation of Gaussian noise on regression targets, in their units.
        center_targets: Whether the mean of the regression targets that are trained on is subtracted from those of both
            splits; then a network that starts near 0 starts at the best constant.
        pixels_averaged: Side of the squares of pixels that are averaged to one, in both splits; 1 keeps the images.
        seed: Seed of the subset and of every corruption.
    """

    name: str = "digits"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train_size: int | None = None
    test_size: int | None = None
    balanced: bool = False
    blur_severity: int = 0
    label_noise: float = 0.0
    label_noise_may_keep_class: bool = False
    target_noise: float = 0.0
    center_targets: bool = False
    pixels_averaged: int = 1
    seed: int = 0

    def _check(self) -> None:
        check_range("data.blur_severity", self.blur_severity, 0, 5)
        check_range("data.label_noise", self.label_noise, 0, 1)
        check_range("data.target_noise", self.target_noise, 0)
        check_range("data.pixels_averaged", self.pixels_averaged, 1)
        for name in ("train_size", "test_size"):
            if getattr(self, name) is not None:
                check_range(f"data.{name}", getattr(self, name), 1)


@dataclass(frozen=True, kw_only=True)
class NetworkSpec(_BaseSpec):
    """Architecture and initialization.

    Attributes:
        name: Name of the network, as in `gapscope.networks.network_names()`.
        options: Its keyword settings (width, depth, dropout, ...).
        initialization: "torch" (PyTorch's default), "standard_normal" (biases too), "xavier_uniform", "he_uniform"
            or "he_normal" (biases zero in the last three).
    """

    name: str = "fully_connected"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    initialization: str = "torch"

    def _check(self) -> None:
        check_choice("network.initialization", self.initialization, INITIALIZATIONS)


@dataclass(frozen=True, kw_only=True)
class NormalizationSpec(_BaseSpec):
    """Replacement of the architecture's batch normalization (by default none).

    Attributes:
        kind: "batch", "ghost", "population" (statistics of training samples, measured again before every step),
            "mean_only", "variance_only" or "none", as in `gapscope.batch_norm.replace`.
        weight_norm: Whether all linear and convolutional layers are weight-normalized, with random directions and
            lengths set from data (Salimans and Kingma 2016).
        emulated_size: For "ghost" the samples per ghost batch. For "population" the batch size whose gamma decay is
            added to the loss, 0 for none.
        only_in: Name of the only layer that stays normalized; "" for all.
        population_samples: Training samples on which the statistics of "population" and its decay are measured.
        directions_std: Standard deviation of the initial directions of weight normalization; larger ones turn slower.
    """

    kind: str = "batch"
    weight_norm: bool = False
    emulated_size: int = 0
    only_in: str = ""
    population_samples: int = 10_000
    directions_std: float = 0.05

    def _check(self) -> None:
        check_choice("normalization.kind", self.kind, NORMALIZATIONS)
        check_range("normalization.emulated_size", self.emulated_size, 0)
        check_range("normalization.population_samples", self.population_samples, 2)
        check_range("normalization.directions_std", self.directions_std, 0, low_open=True)
        if self.kind == "ghost" and self.emulated_size < 2:
            raise InvalidInput(
                f"normalization.emulated_size must be the size of a ghost batch, 2 or more; got {self.emulated_size}."
            )
        if self.emulated_size and self.kind not in ("ghost", "population"):
            raise InvalidInput(
                f"normalization.emulated_size must be 0 for kind {self.kind!r}; got {self.emulated_size}. "
                "Use kind 'ghost' or 'population'."
            )


@dataclass(frozen=True, kw_only=True)
class PenaltySpec(_BaseSpec):
    """One penalty added to the loss.

    Attributes:
        name: Name in the registry; `gapscope.penalties()` lists them.
        options: Keyword settings of the penalty.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class LossSpec(_BaseSpec):
    """Training loss, without penalties.

    Attributes:
        name: "default" (cross-entropy, squared error), "generalized_cross_entropy" or "early_learning", see
            `gapscope.penalties.robust_losses`.
        options: Keyword settings of its class.
    """

    name: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(_BaseSpec):
    """Training configuration (`gapscope.training.loop.train` reads nothing else).

    Attributes:
        optimizer: "sgd" or "adam".
        learning_rate: Initial (for "cyclical": largest) learning rate.
        momentum: SGD momentum (0 for Adam).
        nesterov: Whether SGD uses Nesterov momentum.
        batch_size: Samples per step. The last, smaller batch of an epoch is used too; a single sample joins the batch
            before it, because batch norm has no statistics of one (not with batch_size=1).
        epochs: Largest number of epochs.
        schedule: "constant", "step" (times `schedule_factor` every `schedule_epochs`), "exponential" (times
            `schedule_factor` every epoch), or "cyclical" (triangular between learning_rate * `schedule_factor` and
            learning_rate, one cycle lasting 2 * `schedule_epochs` epochs, updated every step).
        schedule_factor: See schedule.
        schedule_epochs: See schedule.
        augmentation: "none" or "flip_shift_rotate" (training images are changed at random in every epoch, see
            `gapscope.data.corruptions`).
        loss: Loss to which the penalties are added.
        penalties: Penalties added to the loss, each by name and options.
        gradient_clip: Largest L2 norm of the whole gradient; None does not clip.
        stop_at_train_loss: Training ends after `stop_epochs` epochs in total with a mean batch loss (without penalties,
            in training mode) of at most this; None never ends it early.
        stop_epochs: See stop_at_train_loss.
        precision: "float32", or "mixed" (automatic mixed precision, on CUDA only).
        channels_last: Whether images use the channels-last memory format.
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    batch_size: int = 50
    epochs: int = 20
    schedule: str = "constant"
    schedule_factor: float = 0.1
    schedule_epochs: int = 10
    augmentation: str = "none"
    loss: LossSpec = field(default_factory=LossSpec)
    penalties: tuple[PenaltySpec, ...] = ()
    gradient_clip: float | None = None
    stop_at_train_loss: float | None = None
    stop_epochs: int = 1
    precision: str = "float32"
    channels_last: bool = False

    def _check(self) -> None:
        check_choice("training.optimizer", self.optimizer, OPTIMIZERS)
        check_choice("training.schedule", self.schedule, SCHEDULES)
        check_choice("training.augmentation", self.augmentation, AUGMENTATIONS)
        check_choice("training.precision", self.precision, PRECISIONS)
        check_range("training.learning_rate", self.learning_rate, 0, low_open=True)
        check_range("training.momentum", self.momentum, 0, 1, high_open=True)
        check_range("training.batch_size", self.batch_size, 1)
        check_range("training.epochs", self.epochs, 0)
        check_range("training.schedule_factor", self.schedule_factor, 0, 1, low_open=True)
        check_range("training.schedule_epochs", self.schedule_epochs, 1)
        check_range("training.stop_epochs", self.stop_epochs, 1)
        if self.gradient_clip is not None:
            check_range("training.gradient_clip", self.gradient_clip, 0, low_open=True)
        if self.nesterov and self.momentum == 0:
            raise InvalidInput(
                "training.nesterov needs a positive momentum; got momentum 0. Set training.momentum."
            )
        if self.optimizer == "adam" and self.momentum:
            raise InvalidInput(
                f"training.momentum must be 0 with optimizer 'adam'; got {self.momentum}. Use optimizer 'sgd'."
            )


@dataclass(frozen=True, kw_only=True)
class RunSpec(_BaseSpec):
    """Specification of one trained network. Equal specs have equal ids.

    Attributes:
        data: Data and corruption.
        network: Architecture and initialization.
        normalization: Replacement of batch normalization.
        training: Optimization and penalties.
        seed: Seed of initial weights, order of samples and dropout masks.

    >>> RunSpec(seed=1).id == RunSpec(seed=1).id != RunSpec(seed=2).id
    True
    >>> RunSpec().replace({"data.label_noise": 0.3}).data.label_noise
    0.3
    """

    data: DataSpec = field(default_factory=DataSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    normalization: NormalizationSpec = field(default_factory=NormalizationSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    seed: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def _check(self) -> None:
        # what JSON readers and torch's generators take
        check_range("seed", self.seed, -(2**63), 2**63 - 1)
        check_range("data.seed", self.data.seed, -(2**63), 2**63 - 1)

    @functools.cached_property
    def id(self) -> str:
        """First 16 hex digits of the SHA-256 of the settings that are not defaults.

        Defaults are omitted so that a new setting with a neutral default keeps the ids of older runs.
        """
        tables = {name: getattr(self, name).non_default for name in _TABLES}
        content = {name: table for name, table in (tables | {"seed": self.seed}).items() if table}
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def replace(self, changes: Mapping[str, Any], *, made: dict[Any, Any] | None = None) -> RunSpec:
        """Return a copy with settings changed by dotted path (InvalidInput for unknown paths).

        `made` is a cache of tables for many calls on this spec, which use and extend it.

        Args:
            changes: New values by dotted path, such as `{"training.learning_rate": 0.1}`.
            made: Cache of tables for many calls on this spec, which use and extend it; None makes none.
        """
        tables: dict[str, dict[str, Any]] = {}
        for path, value in changes.items():
            table, _, rest = path.partition(".")
            if rest and table not in _TABLES:
                _raise_unknown(path)
            tables.setdefault(table, {})[rest] = value
        parts = {name: self._change(name, settings, made) for name, settings in tables.items()}
        return from_mapping(
            RunSpec,
            {**{item.name: getattr(self, item.name) for item in fields(self)}, **parts},
            "Spec",
        )

    def _change(self, name: str, settings: Mapping[str, Any], cache: dict[Any, Any] | None) -> Any:
        """Return one table with some settings changed, or the seed."""
        if "" in settings:
            return settings[""]
        cache = {} if cache is None else cache
        key = (name, repr(settings))
        if key not in cache:
            table = getattr(self, name)
            content = table.to_dict()
            for path, value in settings.items():
                _set(content, path, value, f"{name}.{path}")
            cache[key] = from_mapping(type(table), content, f"Spec.{name}")
        return cache[key]


_TABLES = ("data", "network", "normalization", "training")


def _set(content: dict[str, Any], path: str, value: Any, full_path: str) -> None:
    """Set the value at a dotted path of nested tables (`full_path` is for messages)."""
    *tables, key = path.split(".")
    for name in tables:
        if not isinstance(content.get(name), dict):
            _raise_unknown(full_path)
        content = content[name]
    content[key] = value


def _raise_unknown(path: str) -> NoReturn:
    raise InvalidInput(
        f"A setting must be named by its path, such as 'data.label_noise'; got {path!r}."
        f"{did_you_mean(path, setting_paths())}"
    )


def setting_paths() -> list[str]:
    """Return the dotted paths of all settings of a RunSpec."""
    defaults = RunSpec()
    return [
        *(f"{table}.{item.name}" for table in _TABLES for item in fields(getattr(defaults, table))),
        "seed",
    ]
