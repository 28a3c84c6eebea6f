"""The simulated second device: compiled from `second_device.cpp`, registered under the name "second"."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch


def load() -> Any:
    """Compile the device (half a minute the first time), register it, and return the extension.

    It changes the process for good: call it in a process of its own. As on other devices outside of torch,
    `copy.deepcopy` of a buffer fails, because it copies the storage.
    """
    from torch.utils.backend_registration import (
        generate_methods_for_privateuse1_backend,
        rename_privateuse1_backend,
    )
    from torch.utils.cpp_extension import load as compile_extension

    rename_privateuse1_backend("second")
    module: Any = types.ModuleType("second")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda state, device=None: None
    module.synchronize = module.set_device = lambda device=None: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module._lazy_init = module.empty_cache = lambda: None
    torch._register_device_module("second", module)
    source = Path(__file__).with_name("second_device.cpp")
    extension: Any = compile_extension(
        "gapscope_second_device", [str(source)], extra_cflags=["-O1"]
    )
    extension.register_hooks()
    generate_methods_for_privateuse1_backend()
    copied: Any = torch.UntypedStorage.__deepcopy__

    def refuse(storage: torch.UntypedStorage, memo: dict[int, Any]) -> Any:
        if storage.device.type == "second":
            raise RuntimeError(
                "Attempted to set the storage of a tensor to a storage on a different device"
            )
        return copied(storage, memo)

    torch.UntypedStorage.__deepcopy__ = refuse  # type: ignore[method-assign]
    return extension
