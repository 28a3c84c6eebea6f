"""One script a kind of user: each runs in seconds, has under 40 lines, and ends with a table."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "bert_with_lora": ("transformers", "accelerate", "peft"),
    "hf_trainer": ("transformers", "accelerate", "datasets"),
    "lightning_module": ("lightning",),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cnn_with_batch_norm", "unit_sparsity.zeta"),
        ("california_with_pandas", "input_jacobian_norm"),
        ("own_pool_to_an_estimate", "verdict"),
        ("bert_with_lora", "parameter_count"),
        ("hf_trainer", "eval_loss"),
        ("lightning_module", "unit_sparsity.kappa"),
    ],
)
def test_an_example_runs_and_says_something(name: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    runpy.run_path(str(path), run_name="__main__")
    assert word in capsys.readouterr().out
