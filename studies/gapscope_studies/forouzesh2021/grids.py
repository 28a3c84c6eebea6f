"""Configurations of all figures and tables: what is trained, and how many runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from gapscope.base.specs import RunSpec
from gapscope_studies.kit.study import RunSettings

INITIALIZATIONS = ("standard_normal", "xavier_uniform", "he_uniform", "he_normal")
HE_NORMAL = {"network.initialization": "he_normal"}


@dataclass(frozen=True)
class Configuration:
    """One point of a figure: its family there, what is trained, and how many runs.

    Each run has its own weights and, where `redrawn`, its own training samples.
    """

    family: str
    spec: RunSpec
    runs: int
    redrawn: bool = True

    @property
    def name(self) -> str:
        """Network, settings and data in a few words."""
        options = ", ".join(f"{key} {value}" for key, value in self.spec.network.options.items())
        return f"{self.spec.network.name} ({options}), {self.spec.network.initialization}, {self.spec.data.train_size}"

    def specs(self) -> list[RunSpec]:
        """The spec of every run."""
        names = ("seed", "data.seed") if self.redrawn else ("seed",)
        return [self.spec.replace(dict.fromkeys(names, seed)) for seed in range(self.runs)]


Configurations = list[Configuration]


def _join(parts: Iterable[Configurations]) -> Configurations:
    return list(chain.from_iterable(parts))


class Families:
    """Families of configurations at one scale, with its sizes, number of runs, and maximum number of epochs."""

    def __init__(
        self, setting: RunSettings, runs: int | None = None, epochs: int | None = None
    ) -> None:
        self.sizes: Any = setting.read(__file__)
        self.runs: int = runs or self.sizes["runs"]
        self.base = RunSpec.from_dict(self.sizes["base"])
        if epochs is not None:
            self.base = self.base.replace({"training.epochs": epochs})

    def _configure(
        self,
        family: str,
        network: str,
        options: Iterable[Mapping[str, Any]],
        changes: Mapping[str, Any] | None = None,
    ) -> Configurations:
        base = self.base.replace({"network.name": network, **(changes or {})})
        return [
            Configuration(family, base.replace({"network.options": item}), self.runs)
            for item in options
        ]

    def dense(
        self, family: str, depth: int, changes: Mapping[str, Any] | None = None, widths: Sequence[int] = (),
        **options: Any,
    ) -> Configurations:  # fmt: skip
        """Fully connected networks of one depth."""
        shapes = [
            {"n_hidden": depth, "width": width, **options}
            for width in widths or self.sizes["widths"]
        ]
        return self._configure(family, "fully_connected", shapes, changes)

    def cnns(
        self, family: str, n_conv: int, sizes: Sequence[Sequence[int]] = (), **options: Any
    ) -> Configurations:
        """CNNs with `n_conv` convolutions."""
        shapes = [{"n_conv": n_conv, "channels": channels, "hidden": hidden, **options}
                  for channels, hidden in sizes or self.sizes["cnn_sizes"]]  # fmt: skip
        return self._configure(family, "plain_cnn", shapes)

    def _popular_shapes(self, network: str, **options: Any) -> list[dict[str, Any]]:
        sizes = self.sizes["popular"]
        options = sizes["options"].get(network, {}) | options
        return [{"width_multiplier": multiplier, **options} for multiplier in sizes["multipliers"]]

    def popular(
        self, networks: str = "networks", train_size: str = "train_size", family: str = ""
    ) -> Configurations:
        """AlexNet, VGG and ResNet from Xavier uniform weights, in sizes of the scale."""
        sizes = self.sizes["popular"]
        changes = {
            "network.initialization": "xavier_uniform",
            "data.train_size": sizes[train_size],
            "training.epochs": sizes["epochs"],
            "training.learning_rate": 1e-3,
        }
        return _join(
            self._configure(family or name, name, self._popular_shapes(name), changes)
            for name in sizes[networks]
        )

    def unregularized_popular(self) -> Configurations:
        """AlexNet and VGG, standard normal, without batch norm, dropout and pooling (Fig. 4)."""
        result = []
        for name in self.sizes["popular"]["unregularized"]:
            without: Any = {"dropout": 0.0} if name == "alexnet" else {"batch_norm": False}
            shapes = self._popular_shapes(name, max_pool=False, **without)
            result += self._configure(f"{name}, standard normal", name, shapes)
        return result

    def by_depth(self, changes: Mapping[str, Any] | None = None) -> Configurations:
        """Fully connected networks of several depths and widths (Fig. 2b)."""
        result = _join(self.dense(f"{m} hidden layers", m, changes) for m in self.sizes["depths"])
        return result + _join(
            self.dense(f"{m} hidden layers", m, changes, [w]) for m, w in self.sizes["more"]
        )

    def other_images(self, name: str) -> Configurations:
        """Fully connected networks on other images (appendix F)."""
        return self.by_depth({"data.name": self.sizes["other_images"][name]})

    def cnns_by_depth(self) -> Configurations:
        """CNNs with one convolution and more, the wide ones among the shallow (Fig. 2c)."""
        first, more = min(self.sizes["convolutions"]), self.sizes["wide_cnns"]
        wide = self.cnns(f"{first} convolutions", first, more) if more else []
        return _join(self.cnns(f"{m} convolutions", m) for m in self.sizes["convolutions"]) + wide

    def initialized(self, kinds: Sequence[str] = INITIALIZATIONS) -> Configurations:
        """Four hidden layers from several initializations (Fig. 3)."""
        return _join(self.dense(kind, 4, {"network.initialization": kind}) for kind in kinds)

    def untrained(self) -> Configurations:
        """Standard normal networks without regularization, which can be compared before training."""
        return self.by_depth() + self.cnns_by_depth() + self.unregularized_popular()

    def stages(self) -> Configurations:
        """Four hidden layers at several stages of training (Fig. 11d)."""
        return _join(
            self.dense(f"{n} epochs", 4, {"network.initialization": kind, "training.epochs": n})
            for n in self.sizes["stages"]
            for kind in ("he_normal", "standard_normal")
        )

    def housing(self) -> Configurations:
        """Fully connected networks for Boston housing, all on the same split (Figs. 5 and 10)."""
        sizes = self.sizes["housing"]
        changes = {
            "data": sizes["data"],
            "network.initialization": "torch",
            "training.epochs": sizes["epochs"],
        }
        result = _join(
            self.dense(f"{m} hidden layers", m, changes, sizes["widths"]) for m in sizes["depths"]
        )
        return [replace(item, redrawn=False) for item in result]

    def authors(self) -> Configurations:
        """The authors' stored results: four hidden layers on the same 1,000 images."""
        sizes = self.sizes["authors"]
        return [
            replace(item, redrawn=False)
            for item in self.dense("authors", 4, sizes["changes"], sizes["widths"])
        ]


GRIDS: dict[str, Callable[[Families], Configurations]] = {
    "by_depth": Families.by_depth,
    "cnns_by_depth": Families.cnns_by_depth,
    # one hidden layer, and what another layer or a convolution adds to it
    "against_convolutions": lambda f: (
        f.dense("FC, 1 hidden layer", 1)
        + f.dense("FC, 2 hidden layers", 2)
        + f.cnns("CNN, 1 convolution", 1)
    ),
    "regularized_dense": lambda f: (
        f.dense("none", 4)
        + f.dense("dropout", 4, dropout=0.5)
        + f.dense("batch normalisation", 4, batch_norm=True)
    ),
    "regularized_cnns": lambda f: (
        f.cnns("none", f.sizes["regularized_convolutions"])
        + f.cnns("dropout", f.sizes["regularized_convolutions"], dropout=0.5)
        + f.cnns("batch normalisation", f.sizes["regularized_convolutions"], batch_norm=True)
        + f.cnns("max-pooling", f.sizes["regularized_convolutions"], max_pool=True)
    ),
    "initialized": Families.initialized,
    # Fig. 1 does not specify which networks start from which weights
    "popular_and_unregularized": lambda f: f.popular() + f.unregularized_popular(),
    "popular_and_initialized": lambda f: f.popular() + f.initialized(),
    "randomly_labelled": lambda f: (
        f.dense("clean", 4, HE_NORMAL)
        + f.dense("random labels", 4, HE_NORMAL | {"data.label_noise": 1.0})
    ),
    # in the paper trained on all of CIFAR-10 (accuracies up to 87 %)
    "table_1": lambda f: f.popular("table_1", "table_1_train_size"),
    "few_and_many": lambda f: (
        f.popular("few_and_many", "few", family="few") + f.popular("few_and_many", family="many")
    ),
    "stages": Families.stages,
    "housing": Families.housing,
    "mnist": lambda f: f.other_images("mnist"),
    "cifar100": lambda f: f.other_images("cifar100"),
    "untrained": Families.untrained,
    "ranked": lambda f: f.untrained() + f.initialized(INITIALIZATIONS[1:]),
    "authors": Families.authors,
}


def make_grid(setting: RunSettings, grid: str, runs: int | None = None) -> Configurations:
    """Return the configurations of a grid, with the scale's number of runs or another."""
    return GRIDS[grid](
        Families(setting, runs, setting.read(__file__).get("until_fitted", {}).get(grid))
    )
