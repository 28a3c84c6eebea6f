"""A real Trainer fit of a tiny model, with and without the callback."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gapscope.integrations.transformers import MonitorCallback
from gapscope.networks.adapters import LogitsOnly
from gapscope.training.monitor import Monitor

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TOKENS = torch.randint(1, 20, (32, 7), generator=torch.Generator().manual_seed(0))
TOKENS[:10, 5:] = 0  # padding
LABELS = (TOKENS.sum(1) % 2).long()


class Sentences(Dataset):
    """Token numbers with their mask and label, as the Trainer wants them."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        mask = (TOKENS[index] != 0).long()
        return {"input_ids": TOKENS[index], "attention_mask": mask, "labels": LABELS[index]}


def tiny_model() -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
        max_position_embeddings=8,
    )
    return transformers.BertForSequenceClassification(config)


def fit(folder: Path, *callbacks: Any) -> tuple[Any, Any]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
    )
    model = tiny_model()
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=list(callbacks))
    trainer.train()
    return trainer, model


def test_weights_are_bit_identical_with_and_without_the_callback(tmp_path: Path) -> None:
    monitor = Monitor((TOKENS, LABELS), ("ntk_trace", "accuracy"), n_samples=12)
    _, plain = fit(tmp_path)
    trainer, monitored = fit(tmp_path, MonitorCallback(monitor))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, monitored.state_dict()[name]), name
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), tiny_model().parameters(), strict=True))
    assert monitor.epochs == [1, 2, 3]
    logged = [row for row in trainer.state.log_history if "ntk_trace" in row]
    assert [row["ntk_trace"] for row in logged] == monitor.to_pandas()["ntk_trace"].tolist()
    assert [row["step"] for row in logged] == [4, 8, 12]


def test_padding_is_left_out() -> None:
    model = tiny_model().eval()
    expected = model(input_ids=TOKENS, attention_mask=(TOKENS != 0).long()).logits
    monitor = Monitor((TOKENS, LABELS), ["accuracy"], n_samples=32)
    numbers = monitor.record(LogitsOnly(model, 0), 1)
    assert numbers["accuracy"] == (expected.argmax(1) == LABELS).double().mean().item()


@pytest.mark.parametrize(("stop", "steps"), [(True, 4), (False, 12)])
def test_the_alarm_ends_training_only_where_asked(tmp_path: Path, raised_in: Any, stop: bool, steps: int) -> None:
    monitor = Monitor((TOKENS, LABELS), ["accuracy"], n_samples=24, alarm=raised_in(1))
    trainer, _ = fit(tmp_path, MonitorCallback(monitor, stop=stop))
    assert trainer.state.global_step == steps
