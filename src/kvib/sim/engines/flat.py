"""A torch module whose parameters and float buffers are one vector."""

from typing import Any

import numpy as np
import torch
from torch import nn


class FlatModule:
    """Views into one vector, so that loading a model and taking an update are single copies."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        named = dict(self.module.named_parameters())
        buffers = {n: b for n, b in self.module.named_buffers() if b.is_floating_point()}
        self.names, self.buffer_names = list(named), list(buffers)
        tensors = [*named.values(), *buffers.values()]
        self.shapes = [t.shape for t in tensors]
        self.vector = torch.cat([t.detach().reshape(-1).float() for t in tensors])
        for tensor, view in zip(tensors, self.split(self.vector), strict=True):
            tensor.data = view
        self.parameters = list(named.values())
        self.trainable = sum(p.numel() for p in self.parameters)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of one vector, or of each row of a matrix [m, d], in the shapes of the module."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes], dim=-1)
        lead = vector.shape[:-1]
        return [p.view(*lead, *shape) for p, shape in zip(parts, self.shapes, strict=True)]


def prepared(x: torch.Tensor) -> torch.Tensor:
    """Inputs as a module wants them: images in 0 … 255 become 0 … 1 with one channel."""
    if x.dtype == torch.uint8:
        x = x.float() / 255
    return x.unsqueeze(1) if x.ndim == 3 else x


def on_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """An array of samples on a device; targets become the integers torch wants."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if tensor.dtype in (torch.float64, torch.float16):
        tensor = tensor.float()
    return tensor.to(device)
