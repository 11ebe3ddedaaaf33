"""The torch modules of the text models, imported only where a module is made."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the common name)
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvib.sim.data import Array
from kvib.sim.text.tokens import PAD

made: Any = transformers
"""The package `transformers`, untyped, since its names differ between versions."""
NEOX_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
DISTILBERT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
BERT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""Options that turn dropout off. Each architecture has names of its own for them."""
MASKED = -1e9
"""Added to the attention scores of padding, whose weights are then 0."""
CAUSAL = "kvib_causal"
# For a name that it has no masks for, transformers builds no mask, and attention is causal by its
# flag. Its own "sdpa" looks for packed documents first, which waits for the device in every step.
# While a CUDA graph is recorded it builds a full mask instead, which the fast kernels refuse.
made.AttentionInterface.register(CAUSAL, sdpa_attention_forward)


class NextTokenModule(nn.Module):
    """A module that maps tokens [batch, length] to logits of the token after each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        constant_buffers_as_parameters(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits, [batch, length, vocabulary]. Blocks are full, so the only mask is causal."""
        logits: torch.Tensor = self.model(input_ids=tokens.long(), use_cache=False).logits
        return logits


class ClassifierModule(nn.Module):
    """A module that maps padded tokens [batch, length] to logits of classes."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)
        constant_buffers_as_parameters(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits, [batch, classes], of the mean over tokens that are not padding."""
        real = tokens != PAD  # [B, L]
        bias = torch.where(real, 0.0, MASKED)[:, None, None, :].expand(-1, -1, tokens.shape[1], -1)
        hidden = self.encoder(input_ids=tokens.long(), attention_mask=bias).last_hidden_state
        weight = real[..., None].to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        logits: torch.Tensor = self.head(mean)
        return logits


class HalfCrossEntropy(torch.autograd.Function):
    """The loss of each row of half-precision logits [n, classes], without copies in float32.

    Autocast would make three copies in single precision, of 50,304 logits per token. Here the
    softmax adds up in single precision and is rounded once. The gradient (p − 1_y)·g, which is
    rounded for the next product anyway, is made of it in single precision. A loss is −ln p_y of the
    rounded p, exact to 0.004.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses [n], and probabilities p [n, classes] for the backward pass."""
        with torch.autocast(logits.device.type, enabled=False):
            p = torch.softmax(logits, -1)
        p_target = p.gather(-1, targets[:, None])[:, 0]
        return -p_target.float().log(), p

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep p and the targets for the backward pass."""
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        """(p − 1_y)·g, written over p, which is not used anywhere else."""
        (p, targets), g = ctx.saved_tensors, gradients[0]
        at_targets = torch.arange(len(targets), device=p.device), targets
        own = (p[at_targets].float() - 1) * g
        p.mul_(g[:, None])
        p[at_targets] = own.to(p.dtype)
        return p, None


def losses_of_rows(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of each row, [n]."""
    if logits.dtype == torch.bfloat16:
        losses: torch.Tensor = HalfCrossEntropy.apply(logits, targets)[0]  # type: ignore[no-untyped-call]
        return losses
    return F.cross_entropy(logits, targets, reduction="none")


def constant_buffers_as_parameters(module: nn.Module) -> None:
    """Turn constant float buffers, such as rotary frequencies, into frozen parameters.

    A module with float buffers could not be batched.
    """
    for owner in module.modules():
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                del owner._buffers[name]
                owner.register_parameter(name, nn.Parameter(buffer.clone(), requires_grad=False))


def next_token(config: Mapping[str, Any], attention: str) -> nn.Module:
    """A GPT-NeoX module with random weights."""
    how = CAUSAL if attention == "sdpa" else attention
    options = made.GPTNeoXConfig(**{**config, **NEOX_DROPOUT}, attn_implementation=how)
    return NextTokenModule(made.GPTNeoXForCausalLM(options))


def classifier(
    config: Mapping[str, Any], classes: int, weights: Mapping[str, Array], attention: str
) -> nn.Module:
    """A classifier module: an encoder with these weights and a random head."""
    own = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version")}
    if own.pop("model_type", "bert") == "distilbert":
        options = made.DistilBertConfig(
            **{**own, **DISTILBERT_DROPOUT}, attn_implementation=attention
        )
        encoder = made.DistilBertModel(options)
    else:
        options = made.BertConfig(**{**own, **BERT_DROPOUT}, attn_implementation=attention)
        encoder = made.BertModel(options, add_pooling_layer=False)
    if weights:
        _load(encoder, weights)
    return ClassifierModule(encoder, options.hidden_size, classes)


HEADS = ("head", "embed_out", "lm_head")
"""Names of the layers that make the outputs, which get no adapters."""


class LowRank(nn.Module):
    """A frozen layer W with a low-rank adapter beside it: x ↦ Wx + s·B(Ax).

    B begins at 0, so that the layer begins as it was.

    Args:
        whole: The layer W.
        rank: The rank of A and B.
        scale: The factor s.

    References:
        Hu et al., "LoRA: low-rank adaptation of large language models", 2021.
    """

    def __init__(self, whole: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.whole, self.scale = whole, scale
        self.down = nn.Linear(whole.in_features, rank, bias=False)
        self.up = nn.Linear(rank, whole.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the layer plus that of the adapter."""
        out: torch.Tensor = self.whole(x) + self.scale * self.up(self.down(x))
        return out


def adapted(module: nn.Module, rank: int, scale: float) -> nn.Module:
    """The module with adapters, in which all but adapters and a classifier's head is frozen."""
    module.requires_grad_(False)
    for owner in list(module.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, nn.Linear) and name not in HEADS:
                setattr(owner, name, LowRank(layer, rank, scale))
    if isinstance(module, ClassifierModule):
        module.head.requires_grad_(True)
    return module


def _load(encoder: nn.Module, weights: Mapping[str, Array]) -> None:
    """Load weights into an encoder, after a check of their names and shapes."""
    names = {name: tensor.shape for name, tensor in encoder.named_parameters()}
    missing = sorted(names.keys() - weights.keys())
    if missing:
        raise ValueError(f"the weights lack {missing[0]}, …; they are of another architecture")
    for name, shape in names.items():
        if weights[name].shape != tuple(shape):
            raise ValueError(
                f"{name} is {weights[name].shape} in the weights, {tuple(shape)} in the model; use "
                "the configuration that the weights were made with"
            )
    state = {name: torch.from_numpy(np.array(weights[name], np.float32)) for name in names}
    encoder.load_state_dict(state, strict=False)
