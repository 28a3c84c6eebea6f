"""Is a fine-tune memorizing? Paired canaries in a tiny GPT-2, with an exact p-value per epoch."""

import tempfile

import matplotlib.pyplot as plt

try:
    import torch
    import transformers

    from gapscope.integrations.memorization_monitor import add_memorization_monitor
    from gapscope.labels.monitored import PairedCanaries
except ImportError as error:
    raise SystemExit(f"skipped: {error}") from None

torch.manual_seed(0)
config = transformers.GPT2Config(vocab_size=29, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                                 eos_token_id=0)  # fmt: skip
model = transformers.GPT2LMHeadModel(config)
sentences = (
    torch.randint(0, 29, (240, 1)) + torch.randint(1, 3, (240, 12)).cumsum(1)
) % 29  # few possible next words
canaries = PairedCanaries.of_tokens(
    [{"input_ids": row, "labels": row.clone()} for row in sentences]
)
arguments = transformers.TrainingArguments(
    tempfile.mkdtemp(), num_train_epochs=15, learning_rate=5e-3, report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True, logging_strategy="no",
)  # fmt: skip
trainer = transformers.Trainer(model, arguments, train_dataset=canaries.dataset)
trainer.remove_callback(transformers.PrinterCallback)
monitor = add_memorization_monitor(trainer, canaries)
trainer.train()
print(f"flagged at epoch {monitor.flagged_at}; {monitor.overhead_fraction:.0%} of the time")
epochs = [row["epoch"] for row in monitor.rows]
plt.semilogy(
    epochs, [row["canary_p_value"] for row in monitor.rows], "o-", label="p-value of the canaries"
)
plt.axhline(0.01 / len(epochs), color="tab:red", label="level 0.01, all epochs together")
plt.xlabel("epoch")
plt.legend()
