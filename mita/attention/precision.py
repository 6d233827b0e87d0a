"""Autocast, also on devices that have none."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """The type that autocast asks for on a device; None where none is in force."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def no_autocast(device: str) -> AbstractContextManager:
    """A context in which tensors keep their types; on a device like "meta" asking for autocast's absence is an error."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
