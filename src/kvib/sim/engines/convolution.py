"""A convolution as one matrix product, for many clients that each have weights of their own.

Without it vmap would make grouped convolutions, which reach a few per cent of a GPU's rate.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the common name)
from torch import nn


def _patches(x: torch.Tensor, height: int, width: int, pad: tuple[int, int]) -> torch.Tensor:
    """All windows of images, channels last, [B, H', W', height · width · channels]."""
    x = F.pad(x.movedim(-3, -1), (0, 0, pad[1], pad[1], pad[0], pad[0]))
    windows = x.unfold(-3, height, 1).unfold(-3, width, 1)  # [B, H', W', channels, height, width]
    return windows.movedim(-3, -1).flatten(-3)


def _convolved(x: torch.Tensor, weight: torch.Tensor, pad: tuple[int, int]) -> torch.Tensor:
    """The convolved images, [B, out, H', W'], in the memory order of channels last."""
    patches = _patches(x, weight.shape[-2], weight.shape[-1], pad)
    out = patches.flatten(0, 2) @ weight.permute(2, 3, 1, 0).flatten(0, 2)
    return out.reshape(*patches.shape[:3], weight.shape[0]).movedim(-1, -3)


class _Convolution(torch.autograd.Function):
    """A convolution of stride 1.

    The gradient of its input is a convolution with the weights turned round. The gradient of its
    weights is the product of windows and output gradients.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, pad: tuple[int, int]) -> torch.Tensor:
        return _convolved(x, weight, pad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, ctx.pad = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        out, channels, height, width = weight.shape
        back = None
        if ctx.needs_input_grad[0]:
            turned = weight.flip(-2, -1).transpose(0, 1)
            back = _convolved(g, turned, (height - 1 - ctx.pad[0], width - 1 - ctx.pad[1]))
        patches = _patches(x, height, width, ctx.pad).flatten(0, 2)
        product = patches.transpose(0, 1) @ g.movedim(-3, -1).flatten(0, 2)
        gradient = product.reshape(height, width, channels, out).permute(3, 2, 0, 1)
        return back, gradient, None


def _padding(layer: nn.Conv2d) -> tuple[int, int] | None:
    """The padding on each side. None for a layer that is not a plain convolution of stride 1."""
    height, width = layer.kernel_size
    simple = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    if not simple or layer.padding_mode != "zeros":
        return None
    if layer.padding == "valid":
        return (0, 0)
    if layer.padding == "same":
        return (height // 2, width // 2) if height % 2 and width % 2 else None
    pad = (int(layer.padding[0]), int(layer.padding[1]))
    return pad if pad[0] < height and pad[1] < width else None


@contextlib.contextmanager
def as_products(module: nn.Module) -> Iterator[None]:
    """Turn convolutions of stride 1 into matrix products, and back afterwards."""
    changed = []
    for layer in module.modules():
        pad = _padding(layer) if type(layer) is nn.Conv2d else None
        if pad is not None:

            def convolve(
                x: torch.Tensor,
                weight: torch.Tensor,
                bias: torch.Tensor | None,
                pad: tuple[int, int] = pad,
            ) -> torch.Tensor:
                kind = x.device.type
                if torch.is_autocast_enabled(kind):  # windows cost most: make them small
                    half = torch.get_autocast_dtype(kind)
                    x, weight = x.to(half), weight.to(half)
                apply: Any = _Convolution.apply
                convolved: torch.Tensor = apply(x, weight, pad)
                return convolved if bias is None else convolved + bias[:, None, None]

            layer._conv_forward = convolve  # type: ignore[assignment]
            changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            del layer._conv_forward
