"""Text tasks: the paper's two with a long tail, and Shakespeare by speaking role."""

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
"""The number of classes of AG News."""
TAIL_SEED = 2024
"""The seed of all long tails: sizes of clients and the documents they get."""
NEWSWIRE_TEST_EVERY = 50
"""Every block of the newswire at a multiple of this is for testing."""
SHAKESPEARE_TEST_EVERY = 10
"""Every block of Shakespeare at a multiple of this is for testing."""


def agnews(
    sigma: float,
    clients: int = 1000,
    rows: int | None = 20_000,
    length: int = 64,
    model: str | Callable[[], Classifier] = "minilm",
    adapters: int = 0,
) -> Task:
    """AG News in four classes, dealt out to clients in a long tail.

    Args:
        sigma: σ of the tail, which is 1, 2 or 3 in the paper.
        clients: The number of clients N.
        rows: The number of training documents. None means all.
        length: The number of tokens of a document, which is cut or padded.
        model: "minilm", a model of the hub ("distilbert-base-uncased"), or a function that makes a
            `Classifier`.
        adapters: The rank of the adapters that are trained beside the frozen encoder. 0 means that
            all of the encoder is trained.
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
    """The tokens and classes of AG News, for training and for testing."""
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
    """Next tokens of news stories, dealt out in a long tail. Every 50th block is for testing.

    Args:
        sigma: σ of the tail, which is 1, 2 or 3 in the paper.
        clients: The number of clients N.
        rows: The number of blocks for training. None means all.
        length: The number of tokens of a block.
        model: The model. The default is Pythia-70M, from scratch.
    """
    model = NextToken() if model is None else model
    files = corpora.REUTERS, corpora.AG_NEWS
    arrays = _kept(f"newswire-neox-{length}", lambda: _newswire(length), "neox", *files)
    check_vocabulary(model, int(arrays["vocabulary"]))
    whole = arrays["blocks"]
    # Blocks at regular distances, so that all sources are tested alike.
    last = min(NEWSWIRE_TEST_EVERY, len(whole)) - 1
    is_test = np.arange(len(whole)) % NEWSWIRE_TEST_EVERY == last
    train = np.flatnonzero(~is_test)
    n = len(train) if rows is None else _enough(rows, len(train), "rows")
    sizes = tail_sizes(n, clients, sigma, TAIL_SEED)
    dealt = whole[train[deal(len(train), sizes, TAIL_SEED)]]
    return next_token_task(f"newswire-{sigma:g}", dealt, sizes, whole[is_test], model)


def _newswire(length: int) -> Arrays:
    """The blocks of all stories, one token longer than their inputs."""
    words = tokenizer("neox")
    found = encode(words, corpora.newswire(), end=end_of_text(words))
    return {"blocks": blocks(found, length + 1), "vocabulary": np.array(found.vocabulary)}


def shakespeare(length: int = 64, model: NextToken | None = None) -> Task:
    """Next tokens of Shakespeare, with one client per speaking role that fills a block.

    Every tenth block is for testing, whatever its role, unless it is the first of its role.

    Args:
        length: The number of tokens of a block. Roles that do not fill one are left out.
        model: The model. The default is Pythia-70M, from scratch.
    """
    model = NextToken() if model is None else model
    name = f"shakespeare-neox-{length}"
    arrays = _kept(name, lambda: _shakespeare(length), "neox", corpora.SHAKESPEARE)
    check_vocabulary(model, int(arrays["vocabulary"]))
    counts = arrays["counts"].astype(np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.zeros(len(owner), np.bool_)
    first[np.cumsum(counts) - counts] = True
    every = SHAKESPEARE_TEST_EVERY
    is_test = (np.arange(len(owner)) % every == every - 1) & ~first
    sizes = np.bincount(owner[~is_test], minlength=len(counts))
    whole = arrays["blocks"]
    return next_token_task("shakespeare", whole[~is_test], sizes, whole[is_test], model)


def _shakespeare(length: int) -> Arrays:
    """The blocks of all roles, one token longer than their inputs, and each role's number."""
    lines = corpora.shakespeare()
    found = encode(tokenizer("neox"), list(lines.values()))
    rows, counts = blocks_by_client(found, list(lines), length + 1, leave_out=True)
    return {"blocks": rows, "counts": counts, "vocabulary": np.array(found.vocabulary)}


def next_token_task(
    name: str, train: Array, sizes: IntArray, test: Array, model: TextModel
) -> Task:
    """A task of blocks with length + 1 tokens: each token is predicted from those before it."""
    data = ClientData(train[:, :-1], train[:, 1:].astype(np.int64), sizes)
    targets = test[:, 1:].astype(np.int64)
    return Task(name, data, (test[:, :-1], targets), model, loss=next_token_loss)


def _kept(name: str, make: Callable[[], Arrays], words: str, *files: str) -> Arrays:
    """The cached arrays that are made of these files and a tokenizer.

    The first file decides whether the files are on this machine.
    """
    made_of = corpora.checksums(*files, LOCAL[words][0])
    return cache.kept(name, make, corpora.sources(files[0]), made_of)


def _enough(wanted: int, found: int, what: str) -> int:
    """The wanted number, if there are that many."""
    if wanted > found:
        raise ValueError(
            f"{what}={wanted}, but there are only {found}; take fewer, or None for all"
        )
    return wanted
