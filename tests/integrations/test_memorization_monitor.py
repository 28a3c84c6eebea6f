"""The fine-tuning meter in a real Trainer: numbers against hand computation, no trace left, two processes as one."""

# ruff: noqa: E402
from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from support.door_networks import bert_classifier
from support.quiet_trainer import training_arguments
from support.two_processes import together

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gapscope.base.errors import InvalidInput
from gapscope.integrations.memorization_monitor import (
    MemorizationMonitor,
    add_memorization_monitor,
    sequence_losses,
)
from gapscope.labels.monitored import PairedCanaries, paired_p_value

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

IDS = torch.randint(1, 20, (32, 7), generator=torch.Generator().manual_seed(0))
SENTENCES = [
    {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 2}
    for row in IDS
]
CANARIES = PairedCanaries.of_labels(SENTENCES, n_classes=2, number=6)


def trainer_of(folder: Path | str, model: Any, data: Any, **options: Any) -> Any:
    arguments = training_arguments(
        folder, **{"per_device_eval_batch_size": 4, "num_train_epochs": 2} | options
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=data)


def test_the_rows_are_those_by_hand_and_training_is_untouched(tmp_path: Path) -> None:
    plain, model = bert_classifier(), bert_classifier()
    trainer_of(tmp_path, plain, CANARIES.dataset).train()
    trainer = trainer_of(tmp_path, model, CANARIES.dataset, logging_steps=1)
    meter = add_memorization_monitor(trainer, CANARIES)
    trainer.train()
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(logged) == 8
    first, second = meter.rows
    assert first["training_loss"] == pytest.approx(sum(map(float, logged[:4])) / 4, abs=1e-3)
    assert second["first_visit_loss"] == pytest.approx(sum(map(float, logged[2:4])) / 2, abs=1e-3)
    assert second["first_visit_gap"] == pytest.approx(
        second["first_visit_loss"] - second["training_loss"]
    )
    model.eval()
    result = []
    for one, other in zip(CANARIES.trained, CANARIES.others, strict=True):
        losses = []
        for item in (one, other):
            batch = {name: value[None] for name, value in item.items()}
            losses.append(float(model(**batch).loss.detach()))
        result.append(losses[1] - losses[0])
    assert second["canary_gap"] == pytest.approx(sum(result) / 6, abs=1e-5)
    assert second["canary_p_value"] == paired_p_value(result)
    assert second["trained_fisher_trace"] > 0 and meter.rows == [
        {name: row[name] for name in row if name != "step"}
        for row in trainer.state.log_history
        if "canary_gap" in row
    ]


def test_losses_of_a_language_model_are_its_own() -> None:
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0,
                                     eos_token_id=0)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    labels = IDS[:3].clone()
    labels[1, 4:] = -100
    with torch.no_grad():
        logits = model(IDS[:3]).logits
        alone = [
            float(model(input_ids=IDS[i : i + 1], labels=labels[i : i + 1]).loss) for i in range(3)
        ]
    assert sequence_losses(logits, labels, causal=True).tolist() == pytest.approx(alone, rel=1e-5)


@pytest.mark.thorough
def test_the_trace_of_a_lora_adapter_is_over_its_weights_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(bert_classifier(), lora)
    trainer = trainer_of(tmp_path, model, CANARIES.dataset, max_steps=1)
    meter = add_memorization_monitor(trainer, CANARIES, trace_samples=3)
    # drawn labels: with two classes the trace is the mean over both, each weighted by its probability, in expectation
    draws = torch.tensor([meter._fisher_trace()["trained_fisher_trace"] for _ in range(60)])
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = []
    for item in SENTENCES:
        logits = model.eval()(
            input_ids=item["input_ids"][None], attention_mask=item["attention_mask"][None]
        ).logits
        for label in range(2):
            logs = logits.log_softmax(1)[0, label]
            gradients = torch.autograd.grad(logs, weights, retain_graph=True, allow_unused=True)
            square = sum(float(g.square().sum()) for g in gradients if g is not None)
            expected.append(2 * float(logs.detach().exp()) * square)
    spread = float(draws.std()) / 60**0.5
    assert abs(float(draws.mean()) - sum(expected) / len(expected)) < 4 * spread + 1e-6


def test_a_flag_can_end_the_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bert_classifier(), CANARIES.dataset, num_train_epochs=5)
    meter = add_memorization_monitor(trainer, CANARIES, level=1.0, stop=True)
    meter._test_canaries = lambda epoch: setattr(meter, "flagged_at", epoch) or {}  # type: ignore[method-assign]
    trainer.train()
    assert meter.flagged_at == 1 and trainer.state.epoch == 1


def test_other_data_and_other_objects_raise(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="transformers Trainer; got str"):
        add_memorization_monitor("trainer")
    with pytest.raises(InvalidInput, match="data other than canaries"):
        add_memorization_monitor(trainer_of(tmp_path, bert_classifier(), SENTENCES), CANARIES)


LANGUAGE = [{"input_ids": row, "labels": row} for row in IDS]


class OwnGPT(transformers.GPT2LMHeadModel):
    pass


class Passing(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: Any = None) -> Any:
        return self.model(input_ids=input_ids, labels=labels)


def gpt(kind: Any = transformers.GPT2LMHeadModel) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        return kind(transformers.GPT2Config(vocab_size=20, bos_token_id=0, eos_token_id=0, **sizes))


@pytest.mark.parametrize("make", [lambda: gpt(OwnGPT), lambda: Passing(gpt())])
def test_subclasses_and_wrappers_of_causal_models_have_the_same_rows(
    tmp_path: Path, make: Any
) -> None:
    rows = []
    for model in (gpt(), make()):
        canaries = PairedCanaries.of_tokens(LANGUAGE, number=6)
        meter = add_memorization_monitor(trainer_of(tmp_path, model, canaries.dataset), canaries)
        meter.trainer.train()
        rows.append(meter.rows)
    # the Trainer divides the losses of a class and of a wrapper by other numbers of tokens
    for mine, theirs in zip(*rows, strict=True):
        for name in ("canary_gap", "canary_p_value", "trained_fisher_trace"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3)


class Classifier(torch.nn.Module):
    """A plain network without further keyword arguments."""

    def __init__(self, n_outputs: int = 4, loss: Any = torch.nn.functional.cross_entropy) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(20, 8), torch.nn.Linear(8, n_outputs)
        self.loss = loss

    def forward(self, input_ids: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.embedding(input_ids).mean(1))
        return (
            {"logits": logits}
            if labels is None
            else {"loss": self.loss(logits, labels), "logits": logits}
        )


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield from ({"input_ids": row, "labels": int(row[0] % 4)} for row in IDS)


def _trained(folder: Path, model: Any, data: Any, **options: Any) -> Any:
    meter = add_memorization_monitor(trainer_of(folder, model, data, **options))
    meter.trainer.train()
    return meter


def test_a_column_that_the_trainer_removes_is_removed(tmp_path: Path) -> None:
    plain = [{"input_ids": row, "labels": int(row[0] % 4)} for row in IDS]
    wide = [{**row, "idx": index, "text": "words"} for index, row in enumerate(plain)]
    canaries = PairedCanaries.of_labels(wide, n_classes=4, number=6)
    meter = add_memorization_monitor(trainer_of(tmp_path, Classifier(), canaries.dataset), canaries)
    meter.trainer.train()
    assert {"canary_gap", "trained_fisher_trace"} <= set(meter.rows[-1]) and not meter.unmeasured
    with_columns, without = (_trained(tmp_path, Classifier(), data) for data in (wide, plain))
    assert with_columns.rows == without.rows


@pytest.mark.thorough
def test_a_data_set_with_text_and_a_padding_collator(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [
        {"text": "words", "input_ids": row[: 4 + i % 3].tolist(), "label": i % 2}
        for i, row in enumerate(IDS)
    ]

    def collate(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        assert all(set(feature) == {"input_ids", "label"} for feature in features)
        ids = [torch.tensor(feature["input_ids"]) for feature in features]
        labels = torch.tensor([feature["label"] for feature in features])
        return {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, True), "labels": labels}

    for data in (datasets.Dataset.from_list(rows), rows):
        canaries = PairedCanaries.of_labels(data, n_classes=2, number=4)
        for given, pairs in ((data, None), (canaries.dataset, canaries)):
            trainer = trainer_of(tmp_path, bert_classifier(), given, max_steps=2)
            trainer.data_collator = collate
            meter = add_memorization_monitor(trainer, pairs)
            trainer.train()
            assert meter.rows[-1]["trained_fisher_trace"] > 0 and not meter.unmeasured


def test_data_without_a_length_have_no_fisher_trace(tmp_path: Path) -> None:
    meter = _trained(tmp_path, Classifier(), Stream(), max_steps=4)
    assert "training_loss" in meter.rows[-1] and "trained_fisher_trace" not in meter.rows[-1]
    assert "got a stream, Stream" in meter.unmeasured["trained_fisher_trace"]
    assert "got a stream" in repr(meter)


def test_regression_has_no_fisher_trace(tmp_path: Path) -> None:
    data = [{"input_ids": row, "labels": float(row[0])} for row in IDS]
    meter = _trained(tmp_path, bert_classifier(num_labels=1), data)
    assert "trained_fisher_trace" not in meter.rows[-1] and len(meter.rows) == 2
    assert "regression" in meter.unmeasured["trained_fisher_trace"]


def test_the_trace_of_several_labels_is_that_of_their_bernoulli_distributions(
    tmp_path: Path,
) -> None:
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    data = [{"input_ids": row, "labels": torch.eye(2)[int(row[0] % 2)]} for row in IDS]
    model = Classifier(2, loss)
    trainer = trainer_of(tmp_path, model, data, max_steps=1)
    meter = add_memorization_monitor(trainer, trace_samples=4)
    trainer.train()
    draws = torch.tensor([meter._fisher_trace()["trained_fisher_trace"] for _ in range(60)])
    expected = []
    for item in data:
        logits = model(item["input_ids"][None])["logits"][0]
        for logit in logits:
            gradients = torch.autograd.grad(
                logit, [*model.parameters()], retain_graph=True, allow_unused=True
            )
            square = sum(g.square().sum().item() for g in gradients if g is not None)
            chance = logit.sigmoid().item()
            expected.append(chance * (1 - chance) * square)
    # draws of different labels are independent, so that only squares remain in the mean
    spread = float(draws.std()) / 60**0.5
    assert abs(float(draws.mean()) - sum(expected) / len(data)) < 4 * spread


def test_an_error_of_the_monitor_does_not_end_the_training(tmp_path: Path) -> None:
    class Failing(Classifier):
        def forward(self, input_ids: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
            if labels is None:
                raise ValueError("labels are missing")
            return super().forward(input_ids, labels)

    plain, model = Failing(), Failing()
    data = [{"input_ids": row, "labels": int(row[0] % 4)} for row in IDS]
    trainer_of(tmp_path, plain, data).train()
    with pytest.warns(UserWarning, match="labels are missing") as caught:
        meter = _trained(tmp_path, model, data)
    assert sum("labels are missing" in str(item.message) for item in caught) == 1
    assert len(meter.rows) == 2 and "ValueError" in meter.unmeasured["trained_fisher_trace"]
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("every", [4, 3])  # at the end of an epoch, and within one
def test_a_resumed_training_resumes_the_monitor(tmp_path: Path, every: int) -> None:
    def trained(**resume: Any) -> Any:
        trainer = trainer_of(
            tmp_path, bert_classifier(), CANARIES.dataset, num_train_epochs=4, save_strategy="steps",
            save_steps=every,
        )  # fmt: skip
        meter = add_memorization_monitor(trainer, CANARIES, level=1.0)
        trainer.train(**resume)
        return meter

    unbroken = trained()
    resumed = trained(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * every}"))
    assert len(resumed.rows) == 4 and resumed.flagged_at == unbroken.flagged_at
    for mine, theirs in zip(resumed.rows, unbroken.rows, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
    (tmp_path / f"checkpoint-{2 * every}" / "gapscope_memorization_0_0.safetensors").unlink()
    with pytest.warns(UserWarning, match="checkpoint without gapscope_memorization"):
        late = trained(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * every}"))
    assert late.rows[0]["epoch"] > 1


def test_a_second_training_continues_and_cannot_spend_the_level_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bert_classifier(), CANARIES.dataset)
    meter = add_memorization_monitor(trainer, CANARIES, level=0.9, stop=True)
    levels = []
    test = meter._test_canaries

    def tested(epoch: int) -> dict[str, float]:
        row = test(epoch)
        levels.append(meter._test_level)
        meter.flagged_at = None
        return row

    meter._test_canaries = tested  # type: ignore[method-assign]
    trainer.train()
    with pytest.warns(UserWarning, match="spent the level 0.9"):
        trainer.train()
    assert [row["epoch"] for row in meter.rows] == [1, 2, 3, 4]
    assert levels == [0.45, 0.45, 0, 0]
    assert len({row["first_visit_loss"] for row in meter.rows}) == 1
    assert ["first_visit_gap" in row for row in meter.rows] == [False, True, True, True]
    assert [row["epoch"] for row in trainer.state.log_history if "canary_gap" in row] == [1, 2]
    late = add_memorization_monitor(trainer)
    trainer.train()
    assert len(late.rows) == 2 and not any("first_visit_loss" in row for row in late.rows)
    assert "not monitored" in late.unmeasured["first_visit_loss"]


@pytest.mark.thorough
def test_a_second_training_of_another_network_is_warned_of(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bert_classifier(), SENTENCES, num_train_epochs=1)
    meter = add_memorization_monitor(trainer, trace_samples=0)
    trainer.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer.train()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        trainer.model.apply(trainer.model._init_weights)
        trainer.model = trainer.model_wrapped = copy.deepcopy(trainer.model)
    with pytest.warns(UserWarning, match="3 is of another"):
        trainer.train()
    assert len(meter.rows) == 3


def test_an_interrupted_training_leaves_the_rest_of_the_level(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bert_classifier(), CANARIES.dataset, num_train_epochs=4)
    meter = add_memorization_monitor(trainer, CANARIES, level=0.8)

    class Interrupting(transformers.TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = True

    callback = Interrupting()
    trainer.add_callback(callback)
    trainer.train()
    trainer.remove_callback(callback)
    trainer.args.num_train_epochs = 2
    trainer.train()
    assert len(meter.rows) == 3 and meter._test_level == pytest.approx(0.3)


def _rows(folder: str, **options: Any) -> list[dict[str, float]]:
    model = bert_classifier(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    trainer = trainer_of(
        folder, model, CANARIES.dataset, accelerator_config={"split_batches": True}, optim="sgd", max_grad_norm=0.0,
        average_tokens_across_devices=False, **options,
    )  # fmt: skip
    trainer._get_train_sampler = lambda *_: SequentialSampler(CANARIES.dataset)  # type: ignore[arg-type]
    meter = add_memorization_monitor(trainer, CANARIES)
    trainer.train()
    return meter.rows


def _in_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    facts = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_PORT": 29500,
    }
    os.environ |= {name: str(value) for name, value in facts.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2
    )
    torch.save(_rows(folder), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_see_what_one_does(tmp_path: Path) -> None:
    together(_in_two, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first == second
    for row, alone in zip(first, _rows(str(tmp_path)), strict=True):
        assert row == pytest.approx(alone, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("trainer", [None, [1], "trainer", torch.nn.Linear(2, 2)])
def test_what_is_no_trainer_is_refused(trainer: Any) -> None:
    for function in (MemorizationMonitor, add_memorization_monitor):
        with pytest.raises(InvalidInput, match="Trainer"):
            function(trainer)


def test_an_end_by_the_flag_needs_canaries(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, bert_classifier(), SENTENCES)
    with pytest.raises(InvalidInput, match="stop=True needs canaries"):
        MemorizationMonitor(trainer, stop=True)
