"""Write docs/measures.md, the table of all registered measures: `python docs/measures_table.py`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import NamedTuple

from gapscope.measures.registry import COST_CLASSES, Measure, list_measures

PAGE = Path(__file__).parent / "measures.md"
COMPARED = PAGE.parents[1] / "benchmarks" / "measures" / "peers.json"
# compared by the benchmarks of gradient similarity; differences are in benchmarks/results
ELSEWHERE = {("ntk_trace", "torch.func"), ("ntk_trace", "neural-tangents")}
REPARAMETRIZATIONS = {
    "rescaling": "a layer before a ReLU times a factor, the next one divided by it: the same outputs",
    "permutation": "the hidden units of a layer in another order: the same outputs",
    "shift": "the same number added to every logit: the same probabilities",
}
ALL = tuple(REPARAMETRIZATIONS)
NOT_RESCALING, NOT_SHIFT = ALL[1:], ALL[:2]
# file in `gapscope.measures` -> family of its measures; the other files hold the four papers and baselines
FAMILIES = {
    "before_training": "before training",
    "curvature": "curvature",
    "norms": "norms and spectra",
    "pacbayes": "sharpness",
    "path_norms": "norms and spectra",
    "representations": "representations",
    "robustness": "robustness",
    "sharpness": "sharpness",
    "training_speed": "training speed",
}


class Verified(NamedTuple):
    """What the tests and benchmarks compare a measure with."""

    oracle: str
    invariances: tuple[str, ...]
    cross_checks: tuple[str, ...] = ()


VERIFIED = {
    "accuracy": Verified("closed form", ALL),
    "adaptive_sharpness": Verified("closed form of a quadratic loss", NOT_SHIFT),
    "augmentation_robustness": Verified(
        "enumerated on a network whose predictions are known", ALL, ("PGDL second place",)
    ),
    "connection_sensitivity": Verified("closed form", ALL),
    "davies_bouldin_mixup": Verified(
        "scikit-learn's Davies-Bouldin index", ALL, ("PGDL first place",)
    ),
    "distance_from_initialization": Verified("closed form", ()),
    "fisher_rao_norm": Verified(
        "closed form of homogeneous networks; dense per-sample gradients", ALL
    ),
    "fisher_trace": Verified("dense per-sample gradients", NOT_RESCALING),
    "gradient_disparity": Verified("closed form", NOT_RESCALING),
    "gradient_neighbours": Verified("dense kernel in float64", NOT_RESCALING),
    "gradient_noise": Verified("dense per-sample gradients", NOT_RESCALING),
    "gradient_norm": Verified("closed form", NOT_RESCALING),
    "gradient_weight_alignment": Verified("gradients of the last layer by autograd", ALL, ("gwa",)),
    "graph_label_variation": Verified(
        "the quadratic form of a dense Laplacian", NOT_SHIFT, ("PGDL third place",)
    ),
    "hessian_top_eigenvalue": Verified("dense Hessian", NOT_RESCALING, ("PyHessian",)),
    "hessian_trace": Verified("dense Hessian", NOT_RESCALING, ("PyHessian",)),
    "input_jacobian_norm": Verified("dense Jacobian in float64", ALL),
    "jacobian_covariance": Verified("dense correlations", ALL),
    "kernel_leave_one_out": Verified(
        "the regression solved again without each sample", NOT_RESCALING
    ),
    "loss": Verified("closed form", ALL),
    "margin_signature": Verified("distance to a linear boundary", ALL, ("the authors' program",)),
    "mixup_robustness": Verified("closed form of a linear network", ALL, ("PGDL first place",)),
    "multiply_accumulates": Verified("closed form", ALL),
    "neural_collapse": Verified("closed form of a simplex; dense matrices", ALL),
    "ntk_logdet": Verified(
        "dense kernel in float64", NOT_RESCALING, ("torch.func", "neural-tangents")
    ),
    "ntk_trace": Verified(
        "dense Jacobian in float64", NOT_RESCALING, ("torch.func", "neural-tangents")
    ),
    "operator_norms": Verified(
        "the operator as a dense matrix", ALL, ("robust-generalization-measures",)
    ),
    "output_margin": Verified("closed form", ALL, ("robust-generalization-measures",)),
    "output_sensitivity": Verified("closed form of random ReLU networks", ALL),
    "pacbayes_distance": Verified(
        "closed form of a linear network", (), ("robust-generalization-measures",)
    ),
    "pacbayes_flatness": Verified(
        "closed form of a linear network", NOT_RESCALING, ("robust-generalization-measures",)
    ),
    "pacbayes_magnitude_flatness": Verified(
        "closed form of a linear network", NOT_SHIFT, ("robust-generalization-measures",)
    ),
    "pacbayes_norm": Verified(
        "closed form of a linear network", ("permutation",), ("robust-generalization-measures",)
    ),
    "parameter_count": Verified("closed form", ALL),
    "parameter_norm": Verified("closed form", ("permutation",)),
    "path_norm": Verified(
        "sum over all paths, enumerated", NOT_SHIFT, ("robust-generalization-measures",)
    ),
    "power_law_alpha": Verified(
        "exact quantiles of a power law", NOT_RESCALING, ("WeightWatcher",)
    ),
    "spectral_complexity": Verified("closed form", ALL, ("robust-generalization-measures",)),
    "spectral_distance_complexity": Verified(
        "closed form", ("shift",), ("robust-generalization-measures",)
    ),
    "synaptic_flow": Verified("closed form of homogeneous networks", ALL),
    "training_loss_sum": Verified("closed form", ALL),
    "unit_sparsity": Verified(
        "a loop that masks one unit after the other", ALL, ("the authors' program",)
    ),
    "worst_case_sharpness": Verified("closed form of a quadratic loss", NOT_RESCALING),
}
HEAD = """# All measures

`gs.measure(network, data)` computes the measures in bold. Name others, or pass `measures="all"`; shared work is done
once. A measure without a value for a network or data is a row with its reason, `readings.unmeasured`.
Of outputs at tokens or pixels, those with the label -100 are omitted, without labels those that the attention mask
leaves out: padding changes no measure.

"""
PEERS = """"cross-checks" are other programs that compute the same number. "agrees": their numbers equal ours up to the
rounding in `benchmarks/measures/peers.json`. "not run":"""
# (measure, peer) -> reason why it was not run
NOT_RUN = {
    (
        "davies_bouldin_mixup",
        "PGDL first place",
    ): "its released program uses the mean over the other classes, not the "
    "largest, and augmented images; scikit-learn's index is the oracle",
    (
        "margin_signature",
        "the authors' program",
    ): "it needs TensorFlow 1 and its own checkpoints; distances to a linear boundary are the oracle",
    (
        "unit_sparsity",
        "the authors' program",
    ): "it is bound to its own VGG-16 and folders; a port of its loop is the "
    "oracle, and a row of `benchmarks/unit_ablation`",
    (
        "ntk_logdet",
        "neural-tangents",
    ): "it returns the kernel, not the log determinant; the kernel agrees",
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "-"


def agreements() -> dict[tuple[str, str], bool]:
    """Return whether all stored numbers of measure and program agree, by both names."""
    agreement = dict.fromkeys(ELSEWHERE, True)
    for row in json.loads(COMPARED.read_text())["rows"]:
        if "agrees" in row:
            key = (row["number"].split(".")[0], row["peer"].replace("_", " "))
            agreement[key] = agreement.get(key, True) and row["agrees"]
    return agreement


def _peers(item: Measure, agreement: dict[tuple[str, str], bool]) -> str:
    """Return each cross-check with its outcome."""
    outcomes = {True: "agrees", False: "differs", None: "not run"}
    by_name = {(name, _normalize(peer)): agrees for (name, peer), agrees in agreement.items()}
    return ", ".join(
        f"{peer} ({outcomes[by_name.get((item.name, _normalize(peer)))]})"
        for peer in VERIFIED[item.name].cross_checks
    )


def _normalize(peer: str) -> str:
    return peer.lower().replace("-", " ").replace("_", " ").replace(".", " ")


def _not_run() -> list[str]:
    """Return each program that was not run, with the reason, as lines of at most 118 characters."""
    lines = []
    for (measure, peer), reason in NOT_RUN.items():
        lines += textwrap.wrap(
            f"- `{measure}`, {peer}: {reason}.", 118, subsequent_indent="  ", break_on_hyphens=False
        )
    return lines


def _row(item: Measure, agreement: dict[tuple[str, str], bool]) -> str:
    name = f"**`{item.name}`**" if item.default else f"`{item.name}`"
    directions = "; ".join(dict.fromkeys(number.direction for number in item.numbers.values()))
    if item.name not in VERIFIED:
        raise SystemExit(
            f"Add {item.name!r} to VERIFIED in {Path(__file__).name}: its oracle and its invariances."
        )
    oracle, invariances, _ = VERIFIED[item.name]
    cells = [
        name, _cell(item.title), directions, _cell(", ".join(item.needs)), item.cost_class, _cell(oracle),
        _cell(", ".join(invariances)), _cell(_peers(item, agreement)), _cell(item.reference),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the text of the page."""
    peers = agreements()
    measures = [
        item
        for item in list_measures().values()
        if item.function.__module__.startswith("gapscope.")
    ]
    lines = [f"{HEAD}Cost classes:", ""]
    lines += [f"- {name}: {meaning}." for name, meaning in COST_CLASSES.items()]
    lines += [
        "",
        "Invariances are checked both ways by one test. The initial weights are not reparametrized; measures that draw",
        "noise or probes are invariant up to their standard error.",
        "",
    ]
    lines += [f"- {name}: {meaning}." for name, meaning in REPARAMETRIZATIONS.items()]
    lines += ["", '"better" is the direction that predicts a smaller generalization gap.']
    lines += ["", PEERS, "", *_not_run()]
    columns = (
        "measure",
        "what it measures",
        "better",
        "needs",
        "cost",
        "oracle",
        "invariances",
        "cross-checks",
        "reference",
    )
    family_of = {
        item.name: FAMILIES.get(item.function.__module__.rpartition(".")[2], "")
        for item in measures
    }
    for family in sorted(set(family_of.values())):
        lines += ["", f"## {(family or 'the four papers and baselines').capitalize()}", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [_row(item, peers) for item in measures if family_of[item.name] == family]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
