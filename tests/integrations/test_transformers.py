"""A real Trainer fit of a tiny model, with and without the callback."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from support.door_networks import bert_classifier
from support.quiet_trainer import training_arguments

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.input_layout import pack_inputs
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.integrations.transformers import MonitorCallback, add_penalty
from gapscope.networks.adapters import LogitsOnly
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.monitor import Monitor

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

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


def trainer_of(
    model: Any, folder: Path, *callbacks: Any, data: Any = None, save: bool = False, **options: Any
) -> Any:
    """A quiet Trainer, which writes a checkpoint after each epoch where asked."""
    arguments = training_arguments(folder, **options)
    if save:
        arguments.save_strategy = transformers.trainer_utils.IntervalStrategy.EPOCH
    data = Sentences() if data is None else data
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=list(callbacks)
    )


def fit(folder: Path, *callbacks: Any) -> tuple[Any, Any]:
    model = bert_classifier()
    trainer = trainer_of(model, folder, *callbacks, num_train_epochs=3)
    trainer.train()
    return trainer, model


@pytest.mark.thorough
def test_weights_are_bit_identical_with_and_without_the_callback(tmp_path: Path) -> None:
    monitor = Monitor((TOKENS, LABELS), ("ntk_trace", "accuracy"), n_samples=12)
    _, plain = fit(tmp_path)
    trainer, monitored = fit(tmp_path, MonitorCallback(monitor))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, monitored.state_dict()[name]), name
    assert any(
        not torch.equal(a, b)
        for a, b in zip(plain.parameters(), bert_classifier().parameters(), strict=True)
    )
    assert monitor.epochs == [1, 2, 3]
    logged = [row for row in trainer.state.log_history if "ntk_trace" in row]
    assert [row["ntk_trace"] for row in logged] == monitor.to_pandas()["ntk_trace"].tolist()
    assert [row["step"] for row in logged] == [4, 8, 12]


@pytest.mark.thorough
def test_the_data_of_the_trainer_are_those_of_the_monitor(tmp_path: Path) -> None:
    monitor = Monitor(Sentences(), ("ntk_trace", "accuracy"), n_samples=12)
    fit(tmp_path, MonitorCallback(monitor))
    ids = Monitor((TOKENS, LABELS), ("ntk_trace", "accuracy"), n_samples=12)
    fit(tmp_path, MonitorCallback(ids))
    assert monitor.epochs == ids.epochs == [1, 2, 3]
    for mine, theirs in zip(monitor.rows, ids.rows, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


def without_dropout(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_penalty_adds_its_own_gradient_to_that_of_the_loss(
    tmp_path: Path, accumulated: int
) -> None:
    batch = {name: torch.stack([Sentences()[i][name] for i in range(8)]) for name in Sentences()[0]}
    gradients = []
    for penalty in (None, GradientSimilarityPenalty(0.1, method="exact")):
        model = without_dropout(bert_classifier()).train()
        trainer = trainer_of(model, tmp_path, max_steps=3, gradient_accumulation_steps=accumulated)
        if penalty is not None:
            add_penalty(trainer, penalty)
        trainer.current_gradient_accumulation_steps = accumulated
        trainer.training_step(model, dict(batch), num_items_in_batch=None)
        gradients.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    model = without_dropout(bert_classifier()).train()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    x, form = pack_inputs(inputs)
    (
        GradientSimilarityPenalty(0.1, method="exact")(NetworkAdapter(model, form), x) / accumulated
    ).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            added = gradients[1][name] - gradients[0][name]
            assert torch.allclose(added, parameter.grad, rtol=1e-3, atol=1e-5), name


@pytest.mark.thorough
def test_gradient_checkpointing_changes_no_weight_of_a_training_with_a_penalty(
    tmp_path: Path,
) -> None:
    weights = []
    for options in ({}, {"gradient_checkpointing": True}):
        for penalty in (None, GradientSimilarityPenalty(0.1)):
            model = without_dropout(bert_classifier())
            trainer = trainer_of(model, tmp_path, max_steps=2, **options)
            if penalty is not None:
                add_penalty(trainer, penalty)
            trainer.train()
            weights.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    torch.testing.assert_close(weights[3], weights[1])
    assert float((weights[1] - weights[0]).abs().max()) > 1e-4


def test_a_penalty_trains_a_lora_adapter_and_leaves_the_rest(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(bert_classifier(), config)
    frozen = {
        name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad
    }
    monitor = Monitor(Sentences(), ("ntk_trace", "parameter_count", "accuracy"), n_samples=12)
    trainer = trainer_of(model, tmp_path, MonitorCallback(monitor), max_steps=3)
    add_penalty(trainer, GradientSimilarityPenalty(0.01))
    trainer.train()
    assert monitor.rows[0]["parameter_count"] == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )
    assert all(
        torch.equal(frozen[name], p) for name, p in model.named_parameters() if name in frozen
    )
    assert any(bool(p.abs().sum() > 0) for name, p in model.named_parameters() if "lora_B" in name)


def test_the_loss_of_evaluation_has_no_penalty(tmp_path: Path) -> None:
    trainer = trainer_of(bert_classifier(), tmp_path, max_steps=3)
    before = trainer.evaluate(Sentences())["eval_loss"]
    add_penalty(trainer, GradientSimilarityPenalty(10.0))
    assert trainer.evaluate(Sentences())["eval_loss"] == before


def test_what_is_no_trainer_or_no_penalty_raises(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="transformers Trainer; got BertForSequenceClassification"
    ):
        add_penalty(bert_classifier(), GradientSimilarityPenalty(0.1))
    with pytest.raises(InvalidInput, match="penalty, such as GradientSimilarityPenalty"):
        add_penalty(trainer_of(bert_classifier(), tmp_path), 0.1)  # type: ignore[arg-type]


def test_the_callback_is_an_attribute_as_the_guide_names_it() -> None:
    assert gs.integrations.transformers.MonitorCallback is MonitorCallback


def test_padding_is_excluded() -> None:
    model = bert_classifier().eval()
    expected = model(input_ids=TOKENS, attention_mask=(TOKENS != 0).long()).logits
    monitor = Monitor((TOKENS, LABELS), ["accuracy"], n_samples=32)
    numbers = monitor.observe(LogitsOnly(model, 0), 1)
    assert numbers["accuracy"] == (expected.argmax(1) == LABELS).double().mean().item()


def test_a_plain_module_has_no_config(tmp_path: Path) -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 2))

        def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
            logits = self.body(input_ids).mean(1)
            if labels is None:
                return {"logits": logits}
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    model, monitor = Plain(), Monitor((TOKENS, LABELS), ["loss"], n_samples=32)
    trainer_of(model, tmp_path, MonitorCallback(monitor)).train()
    loss = torch.nn.functional.cross_entropy(model(TOKENS)["logits"], LABELS).item()
    assert monitor.rows[-1]["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("stop", "steps"), [(True, 4), (False, 12)])
def test_the_alarm_ends_training_only_where_asked(
    tmp_path: Path, raised_in: Any, stop: bool, steps: int
) -> None:
    monitor = Monitor((TOKENS, LABELS), ["accuracy"], n_samples=24, alarm=raised_in(1))
    trainer, _ = fit(tmp_path, MonitorCallback(monitor, stop=stop))
    assert trainer.state.global_step == steps


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["epoch", "steps"])  # steps are saved before the epoch's end
def test_a_resumed_training_resumes_the_monitor_and_its_alarm(
    tmp_path: Path, strategy: str
) -> None:
    def watched() -> Monitor:
        return Monitor((TOKENS, LABELS), ["accuracy"], n_samples=24, alarm="joint")

    def trained(monitor: Monitor, folder: Path, strategy: str, **resume: Any) -> None:
        trainer = trainer_of(
            bert_classifier(), folder, MonitorCallback(monitor), num_train_epochs=3, save_steps=4,
            save_strategy=strategy,
        )  # fmt: skip
        trainer.train(**resume)

    unbroken, resumed = watched(), watched()
    trained(unbroken, tmp_path, strategy)
    trained(resumed, tmp_path, strategy, resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.epochs == unbroken.epochs == [1, 2, 3]
    for mine, theirs in zip(resumed.rows, unbroken.rows, strict=True):
        assert mine == pytest.approx(theirs, nan_ok=True)
    assert resumed.state_dict()["alarm"] == unbroken.state_dict()["alarm"]


@pytest.mark.thorough
def test_wrong_labels_are_reported_after_a_training_and_after_a_resumed_one(tmp_path: Path) -> None:
    tokens = torch.randint(1, 20, (120, 5), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 2 + torch.arange(120) % 2
    truth = tokens[:, 0] - 2
    labels = torch.where(torch.arange(120) < 8, 1 - truth, truth)
    mask = torch.ones_like(tokens)
    rows = [
        {"input_ids": t, "attention_mask": m, "labels": y}
        for t, m, y in zip(tokens, mask, labels, strict=True)
    ]

    def watched(folder: Path, **resume: Any) -> MonitorCallback:
        canaries = Canaries(labels)
        data = [{**row, "labels": label} for row, label in zip(rows, canaries.labels, strict=True)]
        monitor = Monitor(data, [], n_samples=120, alarm=CanaryAlarm(canaries, restore=False))
        callback = MonitorCallback(monitor)
        trainer = trainer_of(
            bert_classifier(), folder, callback, data=data, save=True, num_train_epochs=3
        )
        trainer.train(**resume)
        return callback

    result = gs.find_label_issues(watched(tmp_path))
    wrong = (result.indices < 8).double()
    assert len(result.indices) == 96 and float(wrong[: int(wrong.sum())].mean()) > 0.7
    again = gs.find_label_issues(
        watched(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    )
    assert again.indices[: int(wrong.sum())].tolist() == result.indices[: int(wrong.sum())].tolist()


@pytest.mark.thorough
def test_a_resumed_training_resumes_with_the_state_of_its_penalties(tmp_path: Path) -> None:
    def trained(folder: Path, **resume: Any) -> list[GradientSimilarityPenalty]:
        trainer = trainer_of(bert_classifier(), folder, save=True, num_train_epochs=2)
        penalties = [GradientSimilarityPenalty(strength, seed=4) for strength in (0.01, 0.02)]
        for penalty in penalties:
            add_penalty(trainer, penalty)
        trainer.train(**resume)
        return penalties

    unbroken = trained(tmp_path)
    checkpoint = next(
        path for path in sorted(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    )
    resumed = trained(tmp_path, resume_from_checkpoint=str(checkpoint))
    for mine, theirs in zip(resumed, unbroken, strict=True):
        for name, value in theirs.state_dict().items():
            assert torch.equal(mine.state_dict()[name], value)
    assert {path.name for path in checkpoint.glob("gapscope_penalty*")} == {
        "gapscope_penalty_0_0.safetensors", "gapscope_penalty_1_0.safetensors",
    }  # fmt: skip


def test_what_is_no_monitor_raises_at_once() -> None:
    with pytest.raises(InvalidInput, match="monitor must be a"):
        MonitorCallback((torch.randn(8, 3), torch.arange(8) % 2))  # type: ignore[arg-type]


def test_an_end_by_an_alarm_needs_one() -> None:
    data = torch.rand(8, 3), torch.arange(8) % 2
    with pytest.raises(InvalidInput, match="stop=True needs an alarm"):
        MonitorCallback(Monitor(data), stop=True)
    assert MonitorCallback(Monitor(data, alarm="joint"), stop=True).stop


def test_a_check_takes_the_monitor_of_a_callback() -> None:
    data = torch.rand(8, 3), torch.arange(8) % 2
    monitor = Monitor(data, alarm="joint")
    network = torch.nn.Linear(3, 2)
    for epoch in range(1, 7):
        monitor.observe(network, epoch)
    direct, held = (
        gs.check(network, data, monitor=item, only="GS301").to_dict()
        for item in (monitor, MonitorCallback(monitor))
    )
    assert direct["fine"] == held["fine"] and direct["not_checked"] == held["not_checked"]


@pytest.mark.parametrize(("steps", "epochs"), [(1, [1]), (5, [1, 2])])
def test_a_training_that_ends_within_an_epoch_records_it(
    tmp_path: Path, steps: int, epochs: list[int]
) -> None:
    monitor = Monitor((TOKENS, LABELS), ("accuracy",), n_samples=12)
    trainer_of(bert_classifier(), tmp_path, MonitorCallback(monitor), max_steps=steps).train()
    assert monitor.epochs == epochs
