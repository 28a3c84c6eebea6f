"""Hooks of tensors are noticed by the thread that registers them, and torch is as before afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gapscope.gradients.tensor_hooks import on_tensor_hook

REGISTER = Tensor.register_hook


def hook_a_tensor() -> Tensor:
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda gradient: 2 * gradient)
    return tensor


def test_a_hook_is_noticed_and_works() -> None:
    noticed: list[str] = []
    with on_tensor_hook(lambda: noticed.append("outer")):
        with on_tensor_hook(lambda: noticed.append("inner")):
            tensor = hook_a_tensor()
        hook_a_tensor()
    tensor.sum().backward()
    assert tensor.grad is not None and tensor.grad.tolist() == [2.0, 2.0]
    assert noticed == ["outer", "inner", "outer"] and Tensor.register_hook is REGISTER


def test_other_threads_are_not_noticed_and_leave_no_trace() -> None:
    noticed: list[int] = []
    first = on_tensor_hook(lambda: noticed.append(1))
    second = on_tensor_hook(lambda: noticed.append(2))
    with ThreadPoolExecutor(1) as pool:
        # they overlap: the first to start is the first to end
        first.__enter__()
        pool.submit(second.__enter__).result()
        pool.submit(hook_a_tensor).result()
        first.__exit__(None, None, None)
        pool.submit(second.__exit__, None, None, None).result()
    assert noticed == [2] and Tensor.register_hook is REGISTER
