"""Which networks the study trains: the paper's grids, and two pools that vary what the paper kept fixed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from gapscope.base.specs import Spec
from gapscope_studies.kit.study import Setting

Changes = Mapping[str, Any]

FRACTIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# the recipe whose networks differ in corruption alone (Figs. 1, 2, 5A and 6A); the first value of the other settings
PLAIN: dict[str, Any] = {"dropout": 0.0, "batch_norm": False, "l2": 0.0, "augmented": False}


def _recipes(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def stratified(recipes: Sequence[dict[str, Any]], n: int, balanced: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Draw n different recipes, as many as possible from every combination of the `balanced` settings.

    Args:
        recipes: All recipes.
        n: How many.
        balanced: Settings of which all combinations are taken in turn.
        seed: Seed of the draw.

    Returns:
        The recipes.

    >>> drawn = stratified([{"a": a, "b": b} for a in (0, 1) for b in range(9)], 4, ["a"], 0)
    >>> sorted(recipe["a"] for recipe in drawn)
    [0, 0, 1, 1]
    """
    shuffled = random.Random(seed).sample(list(recipes), len(recipes))
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for recipe in shuffled:
        cells.setdefault(tuple(recipe[name] for name in balanced), []).append(recipe)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*cells.values()))
    return [recipe for recipe in in_turn if recipe is not None][:n]


def _changes(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a recipe. Keras adds l2 times the sum of squares, biases included, which is our penalty."""
    penalties = [{"name": "weight", "options": {"strength": recipe["l2"]}}] if recipe["l2"] else []
    changes = {f"network.options.{name}": recipe[name] for name in ("batch_norm", "dropout") if name in recipe}
    changes |= {f"training.{name}": recipe[name] for name in ("momentum", "learning_rate", "batch_size")}
    return changes | {
        "training.nesterov": recipe["momentum"] > 0,
        "training.augmentation": "flip_shift_rotate" if recipe["augmented"] else "none",
        "training.penalties": penalties,
    }


def _axes(setting: Setting, *, with_norm_and_dropout: bool) -> dict[str, Sequence[Any]]:
    """Appendix D. Small scale has smaller batches, whose many steps fit random labels in minutes, no augmentation.

    Args:
        setting: Says the scale.
        with_norm_and_dropout: Whether batch normalisation and dropout are varied.

    Returns:
        Setting of a recipe -> values.
    """
    norm_and_dropout = {
        "batch_norm": (False, True),
        "dropout": setting.choose(smoke=(0.0,), small=(0.0, 0.2), paper=(0.0, 0.3, 0.5)),
    }
    return (norm_and_dropout if with_norm_and_dropout else {}) | {
        "momentum": setting.choose(smoke=(0.9,), small=(0.9,), paper=(0.9, 0.5, 0.0)),
        "learning_rate": setting.choose(smoke=(0.03,), small=(0.03,), paper=(0.01,)),
        "l2": (0.0, 1e-4),
        "batch_size": setting.choose(smoke=(25,), small=(20, 40), paper=(128, 256, 512)),
        "augmented": setting.choose(smoke=(False,), small=(False,), paper=(False, True)),
    }


def _base(setting: Setting, network: str, options: dict[str, Any]) -> Spec:
    """CIFAR-100 (small: 400 images of Fashion-MNIST; smoke: digits), trained until the loss is small."""
    # from 400 images of CIFAR-100 networks learn nothing that generalises, corrupted or not: all gaps are alike
    content = {
        "data.name": setting.choose(smoke="digits", small="fashion_mnist", paper="cifar100"),
        "data.train_size": setting.choose(smoke=100, small=400, paper=None),
        "data.test_size": setting.choose(smoke=100, small=1000, paper=None),
        "data.label_noise_may_keep_class": True,
        "network.name": network,
        "network.options": options,
        "network.initialization": setting.choose(smoke="he_normal", small="he_normal", paper="xavier_uniform"),
        "training.epochs": setting.choose(smoke=8, small=40, paper=300),
        "training.schedule": "step",
        "training.schedule_epochs": setting.choose(smoke=6, small=27, paper=100),
        "training.stop_at_train_loss": setting.choose(smoke=0.1, small=0.03, paper=0.03),
    }
    return Spec().replace(content)


def _grid(base: Spec, fractions: Sequence[float], axes: Mapping[str, Sequence[Any]], n: int) -> list[Spec]:
    """At every fraction of corrupted labels the plain recipe, and a stratified draw of the others."""
    recipes = _recipes(axes)
    plain = {name: PLAIN.get(name, values[0]) for name, values in axes.items()}
    others = [recipe for recipe in recipes if recipe != plain]
    balanced = [name for name in ("batch_norm", "augmented") if name in axes]
    found = []
    for place, fraction in enumerate(fractions):
        n_here = n // len(fractions) + (place < n % len(fractions))
        drawn = [plain, *stratified(others, n_here - 1, balanced, seed=place)]
        found += [
            base.replace({"data.label_noise": fraction, "seed": number, **_changes(recipe)})
            for number, recipe in enumerate(drawn)
        ]
    return found


def fractions(setting: Setting) -> tuple[float, ...]:
    """Fractions of labels drawn again, uniformly over all classes."""
    return setting.choose(smoke=(0.0, 1.0), small=FRACTIONS, paper=FRACTIONS)


def vgg(setting: Setting) -> list[Spec]:
    """Figs. 1 to 3: 80 VGG-16 out of the 1,296 of the grid; at the smaller scales 6 small CNNs.

    Which 80 is not said in the paper; here 13 or 14 at every fraction, batch normalisation and augmentation balanced.

    Args:
        setting: Says the scale.

    Returns:
        The specs.
    """
    paper = setting.scale == "paper"
    options: dict[str, Any] = {"head": "paper"} if paper else {"width_multiplier": 0.25}
    base = _base(setting, "vgg16" if paper else "small_cnn", options)
    axes = _axes(setting, with_norm_and_dropout=True)
    return _grid(base, fractions(setting), axes, 80 if paper else 6)


def mobilenet(setting: Setting) -> list[Spec]:
    """Fig. 5: MobileNet; how many networks is not said in the paper, here 48 (small: 12)."""
    options = {"width_multiplier": setting.choose(smoke=0.05, small=0.25, paper=1.0)}
    return _normalized(setting, "mobilenet", options)


def resnet34(setting: Setting) -> list[Spec]:
    """Fig. 6: ResNet-34; how many networks is not said in the paper, here 48 (small: 12)."""
    options = {"width_multiplier": setting.choose(smoke=0.03, small=0.0625, paper=1.0)}
    return _normalized(setting, setting.choose(smoke="resnet20", small="resnet34", paper="resnet34"), options)


def _normalized(setting: Setting, network: str, options: dict[str, Any]) -> list[Spec]:
    axes = _axes(setting, with_norm_and_dropout=False)
    n = setting.choose(smoke=6, small=12, paper=48)
    return _grid(_base(setting, network, options), fractions(setting), axes, n)


def plain_networks(specs: Sequence[Spec]) -> list[Spec]:
    """Those of the specs that differ from the first in corruption (and seed) alone, by corruption."""
    same = {"data.label_noise": 0.0, "seed": 0}
    plain = specs[0].replace(same).id
    return sorted((spec for spec in specs if spec.replace(same).id == plain), key=lambda spec: spec.data.label_noise)
