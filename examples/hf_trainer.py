"""A DistilBERT in the Hugging Face Trainer, its data a `datasets.Dataset`: penalty and monitor, a line each."""

import tempfile

import gapscope as gs

try:
    import datasets
    import torch
    import transformers

    from gapscope.integrations.transformers import MonitorCallback, add_penalty
except ImportError as error:
    raise SystemExit(f"skipped: {error}") from None

transformers.set_seed(0)
config = transformers.DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32)
model = transformers.DistilBertForSequenceClassification(config)
ids = torch.randint(1, 30, (48, 8))
columns = {
    "input_ids": ids,
    "attention_mask": torch.ones_like(ids),
    "labels": (ids == 7).any(1).long(),
}
data = datasets.Dataset.from_dict(
    {name: column.tolist() for name, column in columns.items()}
).with_format("torch")
train, test = data.select(range(32)), data.select(range(32, 48))

monitor = gs.Monitor(train, ["ntk_trace", "loss", "accuracy"])
quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=2, learning_rate=1e-3, **quiet
    ),
    train_dataset=train,
    eval_dataset=test,
    callbacks=[MonitorCallback(monitor)],
)
add_penalty(trainer, gs.GradientSimilarityPenalty(0.001))
trainer.train()
print(monitor.to_pandas(), trainer.evaluate(), sep="\n")
print(gs.measure(model, train))
monitor.plot()
