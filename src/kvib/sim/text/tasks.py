"""The paper's two text tasks, and a natural one."""

from collections.abc import Callable

import numpy as np

from kvib.sim.data import Array, ClientData
from kvib.sim.task import Task
from kvib.sim.text import cache, corpora
from kvib.sim.text.models import (
    Adapted,
    Classifier,
    NextToken,
    TextModel,
    check_vocabulary,
    next_token_loss,
    pretrained,
)
from kvib.sim.text.partition import blocks, blocks_by_client, deal, tail_sizes
from kvib.sim.text.tokens import LOCAL, encode, end_of_text, padded, tokenizer
from kvib.types import Arrays, IntArray

CLASSES = 4
TAIL_SEED = 2024


def agnews(
    sigma: float,
    clients: int = 1000,
    rows: int | None = 20_000,
    length: int = 64,
    model: str | Callable[[], Classifier] = "minilm",
    adapters: int = 0,
) -> Task:
    """AG News, four classes, dealt out in a long tail.

    Args:
        sigma: of the tail: 1, 2 or 3.
        clients: N.
        rows: training documents; None for all there are.
        length: tokens of a document, cut or padded.
        model: "minilm", a model of the hub ("distilbert-base-uncased"), or what makes one.
        adapters: of this rank are trained beside the frozen encoder; 0: all of it is trained.
    """
    whole = pretrained(model, CLASSES) if isinstance(model, str) else model()
    classifier = Adapted(whole, adapters) if adapters else whole
    arrays = _kept(f"agnews-bert-{length}", lambda: _agnews(length), "bert", corpora.AG_NEWS)
    check_vocabulary(classifier, int(arrays["vocabulary"]))
    n = len(arrays["y"]) if rows is None else _enough(rows, len(arrays["y"]), "rows")
    sizes = tail_sizes(n, clients, sigma, TAIL_SEED)
    at = deal(len(arrays["y"]), sizes, TAIL_SEED)
    train = ClientData(arrays["x"][at], arrays["y"][at].astype(np.int64), sizes)
    test = (np.array(arrays["test_x"]), arrays["test_y"].astype(np.int64))
    name = f"agnews-lora-{sigma:g}" if adapters else f"agnews-{sigma:g}"
    return Task(name, train, test, classifier, CLASSES)


def _agnews(length: int) -> Arrays:
    words = tokenizer("bert")
    arrays: Arrays = {"vocabulary": np.array(words.get_vocab_size())}
    for prefix, part in zip(("", "test_"), corpora.ag_news(), strict=True):
        arrays[f"{prefix}x"] = padded(encode(words, part.texts, special=True), length)
        arrays[f"{prefix}y"] = np.array(part.labels, np.uint8)
    return arrays


def newswire(
    sigma: float,
    clients: int = 1000,
    rows: int | None = 12_000,
    length: int = 128,
    model: NextToken | None = None,
) -> Task:
    """Next tokens of news stories, dealt out in a long tail; every 50th block is for testing.

    Args:
        sigma: of the tail: 1, 2 or 3.
        clients: N.
        rows: blocks for training; None for all there are.
        length: tokens of a block.
        model: by default Pythia-70M, from scratch.
    """
    model = NextToken() if model is None else model
    files = corpora.REUTERS, corpora.AG_NEWS
    arrays = _kept(f"newswire-neox-{length}", lambda: _newswire(length), "neox", *files)
    check_vocabulary(model, int(arrays["vocabulary"]))
    whole = arrays["blocks"]
    is_test = np.arange(len(whole)) % 50 == min(49, len(whole) - 1)  # of all sources alike
    train = np.flatnonzero(~is_test)
    n = len(train) if rows is None else _enough(rows, len(train), "rows")
    sizes = tail_sizes(n, clients, sigma, TAIL_SEED)
    mine = whole[train[deal(len(train), sizes, TAIL_SEED)]]
    return next_token_task(f"newswire-{sigma:g}", mine, sizes, whole[is_test], model)


def _newswire(length: int) -> Arrays:
    words = tokenizer("neox")
    found = encode(words, corpora.newswire(), end=end_of_text(words))
    return {"blocks": blocks(found, length + 1), "vocabulary": np.array(found.vocabulary)}


def shakespeare(length: int = 64, model: NextToken | None = None) -> Task:
    """Next tokens of Shakespeare, one client per speaking role that fills a block.

    Every tenth block of all is for testing, of whoever says it, but nobody's first.

    Args:
        length: tokens of a block; roles that do not fill one are left out.
        model: by default Pythia-70M, from scratch.
    """
    model = NextToken() if model is None else model
    name = f"shakespeare-neox-{length}"
    arrays = _kept(name, lambda: _shakespeare(length), "neox", corpora.SHAKESPEARE)
    check_vocabulary(model, int(arrays["vocabulary"]))
    counts = arrays["counts"].astype(np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.zeros(len(owner), np.bool_)
    first[np.cumsum(counts) - counts] = True
    is_test = (np.arange(len(owner)) % 10 == 9) & ~first
    sizes = np.bincount(owner[~is_test], minlength=len(counts))
    whole = arrays["blocks"]
    return next_token_task("shakespeare", whole[~is_test], sizes, whole[is_test], model)


def _shakespeare(length: int) -> Arrays:
    said = corpora.shakespeare()
    found = encode(tokenizer("neox"), list(said.values()))
    rows, counts = blocks_by_client(found, list(said), length + 1, leave_out=True)
    return {"blocks": rows, "counts": counts, "vocabulary": np.array(found.vocabulary)}


def next_token_task(
    name: str, train: Array, sizes: IntArray, test: Array, model: TextModel
) -> Task:
    """A task of blocks of length + 1: each token is told by those before it."""
    data = ClientData(train[:, :-1], train[:, 1:].astype(np.int64), sizes)
    targets = test[:, 1:].astype(np.int64)
    return Task(name, data, (test[:, :-1], targets), model, loss=next_token_loss)


def _kept(name: str, make: Callable[[], Arrays], words: str, *files: str) -> Arrays:
    """Made of these files and a tokenizer; the first file says whether they are here."""
    made_of = corpora.checksums(*files, LOCAL[words][0])
    return cache.kept(name, make, corpora.sources(files[0]), made_of)


def _enough(wanted: int, there: int, what: str) -> int:
    if wanted > there:
        raise ValueError(
            f"{what}={wanted}, but there are only {there}; take fewer, or None for all"
        )
    return wanted
