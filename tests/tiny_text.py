"""Text tasks at the size of a test: two layers, 64 wide, 20 clients."""

import json
import lzma

import numpy as np

from kvib.sim import ClientData, Task
from kvib.sim.text import Classifier, NextToken
from kvib.sim.text.partition import tail_sizes
from kvib.sim.text.tasks import next_token_task
from kvib.sim.text.tokens import END

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["oil", "bank", "wins", "cup", "chip", "net", "war", "vote"],
]
BERT = {**TINY, "model_type": "bert", "vocab_size": 60, "intermediate_size": 128}
BERT["max_position_embeddings"] = 16
DISTIL = {"model_type": "distilbert", "vocab_size": 60, "dim": 64, "n_layers": 2, "n_heads": 2}
DISTIL |= {"hidden_dim": 128, "max_position_embeddings": 16}
NEOX = {**TINY, "vocab_size": 60, "intermediate_size": 128, "max_position_embeddings": 16}
CLIENTS = 20


def classification(config=BERT, length=12):
    """Documents whose class is a word in them, padded."""
    rng = np.random.default_rng(0)
    sizes = tail_sizes(120, CLIENTS, 1.0)
    n = sizes.sum() + 40
    y = rng.integers(0, 4, n)
    x = rng.integers(10, 60, (n, length))
    x[:, 0] = 2
    x[np.arange(n), rng.integers(1, 4, n)] = 5 + y
    x[np.arange(length) >= rng.integers(4, length + 1, n)[:, None]] = 0
    x = x.astype(np.uint16)
    train = ClientData(x[:-40], y[:-40], sizes)
    return Task("tiny-classes", train, (x[-40:], y[-40:]), Classifier(config, 4), 4)


def language(length=12, attention="eager"):
    """Counting upwards from a random start, with noise."""
    rng = np.random.default_rng(1)
    sizes = tail_sizes(100, CLIENTS, 1.0)
    n = sizes.sum() + 20
    rows = (rng.integers(0, 60, (n, 1)) + np.arange(length + 1)) % 60
    rows = np.where(rng.random(rows.shape) < 0.1, rng.integers(0, 60, rows.shape), rows)
    rows = rows.astype(np.uint16)
    return next_token_task("tiny-next", rows[:-20], sizes, rows[-20:], NextToken(NEOX, attention))


def write_data(folder):
    """A folder as `KVIB_DATA` names it, with everything in small."""
    import polars as pl

    rng = np.random.default_rng(2)

    def text(words):
        return " ".join(rng.choice(WORDS[5:], words))

    news = {"text": [text(6) for _ in range(60)], "label": [k % 4 for k in range(60)]}
    news |= {"src": [""] * 60, "split": ["test" if k % 6 == 5 else "train" for k in range(60)]}
    news["text"][3] = " "
    pl.DataFrame(news).write_parquet(folder / "agnews_partial.parquet")
    stories = {"title": [text(3) for _ in range(50)], "body": [text(20) for _ in range(49)] + [""]}
    pl.DataFrame(stories).write_parquet(folder / "reuters21578.parquet")
    roles = {"play": ["p"] * 13, "speaker": [*"AAAABBBBCCCCD"]}
    roles["text"] = [text(9) for _ in range(12)] + [text(2)]
    pl.DataFrame(roles).write_parquet(folder / "shakespeare_by_role.parquet")
    vocabulary = "\n".join(WORDS) + "\n"
    (folder / "tokenizer_bert_uncased_vocab.txt.xz").write_bytes(lzma.compress(vocabulary.encode()))
    plain = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: k for k, word in enumerate([END, *WORDS[1:]])},
            "unk_token": "[UNK]",
        },
    }
    (folder / "tokenizer_gptneox20b.json.xz").write_bytes(lzma.compress(json.dumps(plain).encode()))
