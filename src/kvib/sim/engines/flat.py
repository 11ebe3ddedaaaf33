"""A torch module whose trained numbers all lie in one vector."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn


def moving(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """The tensors that training changes, by name: parameters with gradients, and float buffers."""
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    return parameters, {n: b for n, b in module.named_buffers() if b.is_floating_point()}


class FlatModule:
    """A module whose tensors are views into one vector.

    Loading a model and taking an update are then single copies. Frozen parameters are not in the
    vector, since all clients share them.

    On a CPU the weights of convolutions lie channels last in the vector, which is fastest.
    `standard` and `internal` translate to and from the order of torch.

    Args:
        module: The module.
        device: The device to train on.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self._channels_last = device.type == "cpu"
        named, buffers = moving(self.module)
        if not named:
            raise ValueError(
                "the task's module has no parameter that requires gradients: there is nothing to "
                "train; leave some of them as they were made"
            )
        self.names, self.buffer_names = list(named), list(buffers)
        self._places = [
            (owner, name, p)
            for owner in self.module.modules()
            for name, p in owner._parameters.items()
        ]
        tensors = [*named.values(), *buffers.values()]
        self.shapes = [t.shape for t in tensors]
        self.vector = self.join([t.detach().float() for t in tensors])
        for tensor, view in zip(tensors, self.split(self.vector), strict=True):
            tensor.data = view
        self.parameters = list(named.values())
        self.frozen = sum(p.numel() for p in self.module.parameters() if not p.requires_grad)
        """The number of frozen parameters, which are not in the vector."""
        counters = [b for b in self.module.buffers() if not b.is_floating_point()]
        self._counters = [(b, b.detach().clone()) for b in counters]

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of one vector, or of each row of a matrix [m, d], in the shapes of the module."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes], dim=-1)
        lead, views = vector.shape[:-1], []
        for part, shape in zip(parts, self.shapes, strict=True):
            if self._channels_last and len(shape) == 4:
                out, channels, height, width = shape
                wide = part.reshape((*lead, out, height, width, channels))
                views.append(wide.movedim(-1, -3))
            else:
                views.append(part.reshape((*lead, *shape)))
        return views

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One vector made of tensors in the shapes of the module: the inverse of `split`."""
        last = self._channels_last
        parts = [t.movedim(-3, -1) if last and t.ndim == 4 else t for t in tensors]
        return torch.cat([part.reshape(-1) for part in parts])

    def standard(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector, or matrix of rows, with every tensor in torch's own order."""
        lead = vector.shape[:-1]
        return torch.cat([part.reshape((*lead, -1)) for part in self.split(vector)], dim=-1)

    def internal(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector with every tensor in the order of this class: the inverse of `standard`."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes])
        return self.join([p.reshape(shape) for p, shape in zip(parts, self.shapes, strict=True)])

    def put_back(self) -> None:
        """Put all parameters back after `functional_call`.

        It leaves a parameter replaced that two modules share.
        """
        for owner, name, parameter in self._places:
            owner._parameters[name] = parameter

    def restore(self, model: torch.Tensor) -> None:
        """Load a model. Counters start again, so that nothing leaks from client to client."""
        self.vector.copy_(model)
        for buffer, value in self._counters:
            buffer.copy_(value)


def prepared(x: torch.Tensor) -> torch.Tensor:
    """Inputs as a module takes them: images in 0 … 255 become 0 … 1, with one channel."""
    if x.dtype != torch.uint8:
        return x
    x = x.float() / 255
    return x.unsqueeze(1) if x.ndim == 3 else x


def on_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """An array of samples on a device, as float32 or int64. Bytes stay bytes."""
    kind = array.dtype.kind
    if kind == "f":
        array = array.astype(np.float32)
    elif kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Set torch's own generators to this seed, and restore them afterwards.

    Modules draw from no other generators.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
