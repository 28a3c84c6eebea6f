"""The decay of gamma that batches amount to: closed form, sampled, and measured."""
