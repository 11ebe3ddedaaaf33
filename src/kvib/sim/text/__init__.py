"""Text tasks: corpora, tokens cached as arrays, long tails, models through `transformers`."""

from kvib.sim.text.models import Adapted, Classifier, NextToken
from kvib.sim.text.partition import blocks, deal, tail_sizes
from kvib.sim.text.tasks import agnews, newswire, shakespeare
from kvib.sim.text.tokens import Tokens, encode, tokenizer

__all__ = [
    "Adapted",
    "Classifier",
    "NextToken",
    "Tokens",
    "agnews",
    "blocks",
    "deal",
    "encode",
    "newswire",
    "shakespeare",
    "tail_sizes",
    "tokenizer",
]
