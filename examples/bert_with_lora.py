"""A BERT classifier with LoRA in the Hugging Face Trainer: a monitor and a penalty, a line each."""

import tempfile

import gapscope as gs

try:
    import peft
    import torch
    import transformers

    from gapscope.integrations.transformers import MonitorCallback, add_penalty
except ImportError as error:
    raise SystemExit(f"skipped: {error}") from None

torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    num_labels=2,
)
model = peft.get_peft_model(
    transformers.BertForSequenceClassification(config),
    peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]),
)
ids = torch.randint(1, 30, (64, 8))
data = [
    {"input_ids": row, "attention_mask": torch.ones(8).long(), "labels": row[0] % 2} for row in ids
]
arguments = transformers.TrainingArguments(
    tempfile.mkdtemp(),
    num_train_epochs=2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
whole = {name: torch.stack([row[name] for row in data]) for name in data[0]}
monitor = gs.Monitor(whole, ["ntk_trace", "accuracy"])
trainer = transformers.Trainer(
    model, arguments, train_dataset=data, callbacks=[MonitorCallback(monitor)]
)
add_penalty(trainer, gs.GradientSimilarityPenalty(0.001))
trainer.train()
print(monitor.to_pandas())
print(gs.measure(model, whole))
monitor.plot()
