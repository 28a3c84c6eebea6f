"""Availability of torch devices."""

from __future__ import annotations

from gapscope.base.errors import DeviceNotFound


def check_device(name: str) -> None:
    """Raise DeviceNotFound unless tensors can be created on the device."""
    import torch

    try:
        usable = torch.empty(1, device=torch.device(name)).device.type != "meta"
        reason = "it holds no numbers"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable, reason = False, (str(error).strip().splitlines() or ["no reason given"])[0]
    if not usable:
        raise DeviceNotFound(
            f"device must be one that torch can use on this machine, such as 'cpu'; got {name!r} ({reason})."
        )
