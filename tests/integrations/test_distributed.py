"""A penalty in the Trainer of transformers: two processes train as one does on the joined batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import SequentialSampler

from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.training.monitor import Monitor
from support.door_networks import bert_classifier
from support.quiet_trainer import training_arguments
from support.two_processes import together

STEPS, BATCH = 3, 8
IDS = torch.randint(1, 20, (STEPS * BATCH, 7), generator=torch.Generator().manual_seed(0))
SENTENCES = [
    {"input_ids": row, "attention_mask": (row != 3).long(), "labels": row.sum() % 2} for row in IDS
]

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


def _penalty(strength: float) -> GradientSimilarityPenalty:
    return GradientSimilarityPenalty(strength, method="exact")


def _join(rank: int, folder: str) -> None:
    """Meet the other process, as torchrun's environment would say it; the meeting itself is by a file."""
    torch.set_num_threads(1)
    facts = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_PORT": 29500,
    }
    os.environ |= {name: str(value) for name, value in facts.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2
    )


def _weights(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def _with_lora(model: Any) -> Any:
    import peft

    settings = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.0
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peft.get_peft_model(model, settings)


def _trained_by_transformers(folder: str, strength: float, *, lora: bool = False) -> Tensor:
    import transformers

    from gapscope.integrations.transformers import MonitorCallback, add_penalty

    settings: Any = {
        "per_device_train_batch_size": BATCH, "accelerator_config": {"split_batches": True},
        "num_train_epochs": 1, "learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0,
        # else the Trainer multiplies this model's loss, which is a mean already, by the number of processes
        "average_tokens_across_devices": False,
    }  # fmt: skip
    model: Any = bert_classifier(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = _with_lora(model) if lora else model
    trainer: Any = transformers.Trainer(
        model,
        training_arguments(folder, **settings),
        train_dataset=SENTENCES,  # type: ignore[arg-type]
    )
    trainer._get_train_sampler = lambda *_: SequentialSampler(SENTENCES)
    monitor = Monitor(
        {name: torch.stack([row[name] for row in SENTENCES]) for name in SENTENCES[0]},
        ["ntk_trace"],
    )
    if lora:
        trainer.add_callback(MonitorCallback(monitor))
    add_penalty(trainer, _penalty(strength))
    trainer.train()
    assert trainer.state.global_step == STEPS
    # the first process records the epoch
    assert len(monitor.epochs) == (1 if lora and trainer.is_world_process_zero() else 0)
    return _weights(model)


def _in_transformers(rank: int, folder: str) -> None:
    _join(rank, folder)
    torch.save(_trained_by_transformers(folder, 0.01), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def _with_lora_in_transformers(rank: int, folder: str) -> None:
    _join(rank, folder)
    torch.save(_trained_by_transformers(folder, 30.0, lora=True), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "process", "alone"),
    [
        (
            "transformers",
            _in_transformers,
            lambda folder, strength: _trained_by_transformers(folder, strength),
        ),
        (
            "peft",
            _with_lora_in_transformers,
            lambda folder, strength: _trained_by_transformers(folder, strength, lora=True),
        ),
    ],
)
def test_two_processes_train_as_one_does(
    tmp_path: Path, library: str, process: Any, alone: Any
) -> None:
    pytest.importorskip(library)
    together(process, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    # few weights are trained with LoRA, and their gradients are small
    strength = {"transformers": 0.01, "peft": 30.0}[library]
    torch.testing.assert_close(first, alone(str(tmp_path), strength), rtol=1e-4, atol=1e-6)
    assert float((first - alone(str(tmp_path), 0.0)).abs().max()) > 1e-3


def test_a_trainers_model_may_be_wrapped_for_several_processes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gapscope.integrations.transformers import add_penalty

    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    model = bert_classifier(hidden_dropout_prob=0, attention_probs_dropout_prob=0).train()
    batch = {name: torch.stack([row[name] for row in SENTENCES[:BATCH]]) for name in SENTENCES[0]}
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        trainer = transformers.Trainer(model, arguments)
        plain = trainer.compute_loss(model, dict(batch))
        add_penalty(trainer, _penalty(0.01))
        wrapped = DistributedDataParallel(model)
        with_penalty = trainer.compute_loss(wrapped, dict(batch))
        with_penalty.backward()
    finally:
        torch.distributed.destroy_process_group()
    assert float(with_penalty) > float(plain) + 1e-3
    result = _gradients(model)
    loss = trainer.compute_loss(model, dict(batch))
    loss.backward()
    torch.testing.assert_close(result, _gradients(model))


def _gradients(model: nn.Module) -> Tensor:
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat([gradient.flatten() for gradient in gradients])
