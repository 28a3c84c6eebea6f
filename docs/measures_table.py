"""Write docs/measures.md, the table of all registered measures: `python docs/measures_table.py`."""

from __future__ import annotations

import json
from pathlib import Path

from gapscope.measures.registry import COST_CLASSES, REPARAMETRIZATIONS, Measure, list_measures

PAGE = Path(__file__).parent / "measures.md"
COMPARED = PAGE.parents[1] / "benchmarks" / "measures" / "peers.json"
# compared by the benchmarks of gradient similarity; differences are in benchmarks/results
ELSEWHERE = {("ntk_trace", "torch.func"), ("ntk_trace", "neural-tangents")}
SHORT = {"layer rescaling": "rescaling", "unit permutation": "permutation", "head shift": "shift"}
HEAD = """# All measures

`gs.measure(network, data)` computes the measures in bold. Name others, or pass `measures="all"`; shared work is done
once. A measure without a value for a network or data is a row with its reason, `readings.unmeasured`.

"""
PEERS = """"cross-checks" are other programs that compute the same number. "agrees": their numbers equal ours up to the
rounding in `benchmarks/measures/peers.json`. "not run":"""
# (measure, peer) -> why it was not run
NOT_RUN = {
    ("davies_bouldin_mixup", "PGDL first place"): "its released program takes the mean over the other classes, not the "
    "largest, and augmented images; scikit-learn's index is the oracle",
    ("augmentation_margin", "PGDL first place"): "its augmentations are other ones; the margin itself is that of "
    "`mixup_margin`, which agrees",
    (
        "margin_signature",
        "the authors' program",
    ): "it needs TensorFlow 1 and its own checkpoints; distances to a linear boundary are the oracle",
    ("unit_sparsity", "the authors' program"): "it is bound to its own VGG-16 and folders; a port of its loop is the "
    "oracle, and a row of `benchmarks/unit_ablation`",
    ("ntk_logdet", "neural-tangents"): "it gives the kernel, not the log determinant; the kernel agrees",
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "-"


def compared() -> dict[tuple[str, str], bool]:
    """Return whether all stored numbers of measure and program agree, by both names."""
    agreement = dict.fromkeys(ELSEWHERE, True)
    for row in json.loads(COMPARED.read_text())["rows"]:
        if "agrees" in row:
            key = (row["number"].split(".")[0], row["peer"].replace("_", " "))
            agreement[key] = agreement.get(key, True) and row["agrees"]
    return agreement


def _peers(item: Measure, known: dict[tuple[str, str], bool]) -> str:
    """Return each cross-check with its outcome."""
    outcomes = {True: "agrees", False: "differs", None: "not run"}
    by_name = {(name, _plain(peer)): agrees for (name, peer), agrees in known.items()}
    return ", ".join(f"{peer} ({outcomes[by_name.get((item.name, _plain(peer)))]})" for peer in item.cross_checks)


def _plain(peer: str) -> str:
    return peer.lower().replace("-", " ").replace("_", " ").replace(".", " ")


def _not_run() -> list[str]:
    """Return each program that was not run, with the reason."""
    return [f"- `{measure}`, {peer}: {why}." for (measure, peer), why in NOT_RUN.items()]


def _row(item: Measure, known: dict[tuple[str, str], bool]) -> str:
    name = f"**`{item.name}`**" if item.default else f"`{item.name}`"
    directions = "; ".join(dict.fromkeys(number.direction for number in item.numbers.values()))
    unchanged = ", ".join(SHORT[change] for change in item.invariances)
    cells = [
        name, _cell(item.title), directions, _cell(", ".join(item.needs)), item.cost_class, _cell(item.oracle),
        _cell(unchanged), _cell(_peers(item, known)), _cell(item.reference),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the whole page."""
    peers = compared()
    known = [item for item in list_measures().values() if item.function.__module__.startswith("gapscope.")]
    lines = [f"{HEAD}Cost classes:", ""]
    lines += [f"- {name}: {meaning}." for name, meaning in COST_CLASSES.items()]
    lines += ["", "Invariances are checked both ways by one test; the initial weights are not reparametrized:", ""]
    lines += [f"- {SHORT[name]}: {meaning}." for name, meaning in REPARAMETRIZATIONS.items()]
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
    for family in sorted({item.family for item in known}):
        lines += ["", f"## {(family or 'the four papers and baselines').capitalize()}", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [_row(item, peers) for item in known if item.family == family]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
