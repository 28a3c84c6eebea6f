"""The networks on which rules are tuned, and the other ones on which they are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gapscope.base.specs import Spec
from gapscope_studies.kit.study import Setting
from gapscope_studies.overfitting_alarm.kinds import JUDGING, TUNING, Kind


@dataclass(frozen=True)
class Case:
    """A network to be watched: its spec, the name of its kind, and the epochs from one recording to the next."""

    kind: str
    spec: Spec
    every: int


def _cases_of(kind: Kind) -> list[Case]:
    """All combinations of noise and seed."""
    pairs = [(noise, seed) for seed in kind.seeds for noise in kind.noises]
    pairs += [(0.0, seed) for seed in kind.clean_seeds]
    changes = [{"data.label_noise": noise, "data.seed": seed, "seed": seed} for noise, seed in pairs]
    return [Case(kind.name, Spec().replace({**kind.settings, **change}), kind.every) for change in changes]


def _small_kind(kind: Kind, noises: Sequence[float]) -> Kind:
    return Kind(kind.name, {**kind.settings, "training.epochs": 60}, 6, noises, kind.seeds[:1])


def tuning_cases(setting: Setting) -> list[Case]:
    """Networks to tune the rules on."""
    return _cases(setting, TUNING)


def judging_cases(setting: Setting) -> list[Case]:
    """Networks to judge the tuned rules on, of other sizes, kinds, optimisers, noise and seeds."""
    return _cases(setting, JUDGING)


def _cases(setting: Setting, kinds: Sequence[Kind]) -> list[Case]:
    if setting.scale == "smoke":
        kinds = [_small_kind(kinds[1] if kinds is TUNING else kinds[0], (0.0, 0.5))]
    if setting.scale == "paper":
        kinds = [
            Kind(k.name, k.settings, k.every, k.noises, [100 * i + s for i in range(5) for s in k.seeds], k.clean_seeds)
            for k in kinds
        ]
    return [case for kind in kinds for case in _cases_of(kind)]
