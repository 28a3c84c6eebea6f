"""The fine-tuning meter on tiny models with LoRA: does it flag before the evaluation loss turns, and when it must not?

    python benchmarks/fine_tuning/run.py --out benchmarks/results/fine_tuning.json
    python benchmarks/fine_tuning/run.py --smallest

Protocol, fixed before any of the judged runs (seeds 100 and up) was trained:

- Models from a config, random weights: a BERT classifier of sentences of 8 tokens, four classes by the first token with
  a tenth of the labels wrong; a GPT-2 on sequences of 12 tokens from a Markov chain. LoRA of rank 8 on all linear
  layers, embeddings and head trained too. 480 sequences, 48 pairs of canaries, batches of 16, Adam, constant learning
  rate .005.
- Memorizing: 20 runs a model of 15 epochs. Counted are the runs that are flagged at all, and those flagged no later
  than the epoch of the least evaluation loss, on 300 fresh sequences. A run whose evaluation loss is least in the last
  epoch has not turned and counts as in time.
- Null: 50 runs a model of 6 epochs in which coins are tossed again after the training data are made, so that the meter
  knows nothing of which canaries were trained, however well these are learned. Counted are the flags; level .01.
- Cost: seconds of the meter by seconds of training with it, for 2,000 sequences of 64 tokens and the default 24 pairs.

It continues where it was stopped: every run is a line of the file beside `--out`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from gapscope.base.environment import environment
from gapscope.integrations.memorization_monitor import MemorizationMonitor, add_memorization_monitor
from gapscope.labels.monitored import PairedCanaries

WORDS, CLASSES, PAIRS = 29, 4, 48
Rows = list[dict[str, Any]]


def sentences(count: int, length: int, generator: torch.Generator) -> Rows:
    ids = torch.randint(1, WORDS, (count, length), generator=generator)
    labels = (ids[:, 0] - 1) * CLASSES // (WORDS - 1)
    wrong = torch.rand(count, generator=generator) < 0.1
    shift = torch.randint(1, CLASSES, (count,), generator=generator)
    labels = torch.where(wrong, (labels + shift) % CLASSES, labels)
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": label}
        for row, label in zip(ids, labels, strict=True)
    ]


def chains(count: int, length: int, generator: torch.Generator) -> Rows:
    steps = (2 * torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(7))).softmax(1)
    ids = torch.randint(0, WORDS, (count, 1), generator=generator)
    for _ in range(length - 1):
        ids = torch.cat([ids, torch.multinomial(steps[ids[:, -1]], 1, generator=generator)], 1)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def classifier(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=CLASSES,  # pyright: ignore[reportCallIssue]
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    lora = peft.LoraConfig(
        task_type="SEQ_CLS", r=8, target_modules=["query", "key", "value", "dense"],
        modules_to_save=["classifier", "word_embeddings"],
    )  # fmt: skip
    return peft.get_peft_model(transformers.BertForSequenceClassification(config), lora)


def language_model(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, target_modules=["c_attn", "c_fc", "c_proj"], modules_to_save=["wte", "lm_head"],
    )  # fmt: skip
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)


KINDS: dict[str, Any] = {
    "classifier": (classifier, sentences, 8),
    "language model": (language_model, chains, 12),
}


def canaries_of(kind: str, data: Rows, seed: int, pairs: int) -> PairedCanaries:
    if kind == "classifier":
        return PairedCanaries.of_labels(data, n_classes=CLASSES, number=pairs, seed=seed)
    return PairedCanaries.of_tokens(data, number=pairs, seed=seed)


def tossed_anew(canaries: PairedCanaries, seed: int) -> PairedCanaries:
    swap = (torch.rand(len(canaries), generator=torch.Generator().manual_seed(seed)) < 0.5).tolist()
    both = list(zip(canaries.trained, canaries.others, strict=True))
    trained = [pair[change] for pair, change in zip(both, swap, strict=True)]
    others = [pair[not change] for pair, change in zip(both, swap, strict=True)]
    return PairedCanaries(canaries.dataset, trained, others)


def fine_tuned(
    kind: str,
    seed: int,
    epochs: int,
    *,
    null: bool = False,
    count: int = 480,
    length: int = 0,
    pairs: int = PAIRS,
) -> tuple[MemorizationMonitor, list[float]]:
    model_of, data_of, usual = KINDS[kind]
    generator, length = torch.Generator().manual_seed(seed), length or usual
    data, held_out = data_of(count, length, generator), data_of(300, length, generator)
    canaries = canaries_of(kind, data, seed, pairs)
    canaries = tossed_anew(canaries, seed) if null else canaries
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=16, per_device_eval_batch_size=100, learning_rate=5e-3,
            lr_scheduler_type="constant", num_train_epochs=epochs, report_to=[], save_strategy="no", disable_tqdm=True,
            use_cpu=True, seed=seed, eval_strategy="no" if null else "epoch", logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model_of(seed),
            args=arguments,
            train_dataset=canaries.dataset,
            eval_dataset=held_out,  # type: ignore[arg-type]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        meter = add_memorization_monitor(trainer, canaries)
        trainer.train()
        return meter, [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]


def memorizing(kind: str, seed: int, epochs: int = 15) -> dict[str, Any]:
    meter, losses = fine_tuned(kind, seed, epochs)
    turned = min(range(len(losses)), key=losses.__getitem__) + 1
    gaps = {
        "first_visit_gap": meter.rows[-1].get("first_visit_gap"),
        "canary_gap": meter.rows[-1]["canary_gap"],
    }
    return {"flagged": meter.flagged_at, "least evaluation loss": turned, "epochs": epochs, **gaps}


def null(kind: str, seed: int, epochs: int = 6) -> dict[str, Any]:
    meter, _ = fine_tuned(kind, seed, epochs, null=True)
    return {
        "flagged": meter.flagged_at,
        "least p-value": min(row["canary_p_value"] for row in meter.rows),
    }


def cost(kind: str, seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    meter, _ = fine_tuned(kind, seed, 2, null=True, count=2000, length=64, pairs=24)
    return {"share": meter.overhead_fraction, "seconds": time.perf_counter() - start}


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for kind in KINDS:
        watched = [run for name, run in runs.items() if name.startswith(f"memorising/{kind}/")]
        flagged = [run for run in watched if run["flagged"] is not None]
        in_time = [
            run for run in flagged
            if run["flagged"] <= run["least evaluation loss"] or run["least evaluation loss"] == run["epochs"]
        ]  # fmt: skip
        empty = [run for name, run in runs.items() if name.startswith(f"null/{kind}/")]
        shares = [run["share"] for name, run in runs.items() if name.startswith(f"cost/{kind}/")]
        result[kind] = {
            "memorising runs": len(watched), "flagged": len(flagged), "flagged in time": len(in_time),
            "null runs": len(empty), "false flags": sum(run["flagged"] is not None for run in empty),
            "share of training time": min(shares, default=None),
        }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smallest", action="store_true", help="one short run of each: does it work?"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    if options.smallest:
        print(json.dumps([[memorizing(kind, 0, 2), null(kind, 0, 2)] for kind in KINDS], indent=1))
        return
    kept = options.out.with_suffix(".runs.jsonl")
    lines = kept.read_text().splitlines() if kept.exists() else []
    runs = dict(json.loads(line) for line in lines)
    expected = [(part, kind, seed) for part, seeds in ((memorizing, 20), (cost, 3), (null, 50)) for kind in KINDS
              for seed in range(100, 100 + seeds)]  # fmt: skip
    for part, kind, seed in expected:
        name = f"{part.__name__}/{kind}/{seed}"
        if name not in runs:
            runs[name] = part(kind, seed)
            with kept.open("a") as file:
                file.write(json.dumps([name, runs[name]]) + "\n")
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment("cpu") | {"transformers": transformers.__version__},
        "summary": summary(runs),
        "runs": runs,
    }  # fmt: skip
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    kept.unlink()


if __name__ == "__main__":
    main()
