"""A corpus as token arrays on disk, memory-mapped: the one entry for training and evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wmresearch.config import ConfigError, Problem
from wmresearch.config.data import BpeTokenizer, DataConfig
from wmresearch.data.cache import Report, build_once, cache_folder, unheard
from wmresearch.data.corpora import PreparedCorpus, open_corpus
from wmresearch.data.tokenizers import Tokenizer, make_tokenizer, tokenizer_from_json, vocab_size

FORMAT = 1
"""Raised when token folders change their layout, or a tokenizer its ids."""


@dataclass(frozen=True)
class SplitTokens:
    """One split as tokens [n], with the size of its text."""

    tokens: NDArray[np.integer]
    """A read-only memory map of uint8, uint16 or uint32."""
    n_bytes: int
    """UTF-8 bytes of the split's text."""
    predicted_bytes: int
    """Of those, the bytes of all tokens but the first: what bits per byte are counted over."""
    n_characters: int


@dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus, its tokenizer, and its splits (train, validation and, where there is one, test) as tokens."""

    name: str
    digest: str
    """sha256 (hex) over the names and text of the splits."""
    tokenizer: Tokenizer
    splits: dict[str, SplitTokens]


def symbols_of(config: DataConfig) -> int:
    """Symbols of a config's tokenizer; only where they depend on the corpus is the corpus read.

    Raises:
        ConfigError: as `load_corpus`.
    """
    return vocab_size(config.tokenizer) or load_corpus(config).tokenizer.vocab_size


def load_corpus(config: DataConfig, report: Report | None = None) -> TokenizedCorpus:
    """The corpus of a config as tokens; prepares text and tokens where they are not yet.

    Raises:
        ConfigError: the corpus cannot be had, or a split has less than two tokens.
    """
    say = report or unheard
    corpus = open_corpus(config, say)
    tokenizer = config.tokenizer
    size = f"-{tokenizer.vocab_size}" if isinstance(tokenizer, BpeTokenizer) else ""
    folder = cache_folder() / "tokens" / corpus.digest[:32] / f"{tokenizer.kind}{size}-{FORMAT}"
    build_once(folder, lambda partial: _tokenize(corpus, config, partial, say), say)
    return TokenizedCorpus(
        corpus.name,
        corpus.digest,
        tokenizer_from_json(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))),
        {
            split: SplitTokens(np.load(folder / f"{split}.npy", mmap_mode="r"), **sizes)
            for split, sizes in json.loads((folder / "splits.json").read_text(encoding="utf-8")).items()
        },
    )


def _tokenize(corpus: PreparedCorpus, config: DataConfig, folder: Path, say: Report) -> None:
    texts = corpus.read()
    if isinstance(config.tokenizer, BpeTokenizer):
        say(f"learning {config.tokenizer.vocab_size} byte-pair symbols from the train split")
    tokenizer = make_tokenizer(config.tokenizer, texts)
    splits: dict[str, dict[str, int]] = {}
    for split, text in texts.items():
        size = corpus.splits[split]
        say(f"making tokens of {corpus.name}, {split} ({size.n_bytes / 1e6:.1f} MB)")
        tokens = tokenizer.encode(text)
        if len(tokens) < 2:
            expected = f"more text: the {split} split has {len(tokens)} token, and needs two"
            raise ConfigError([Problem("config", "data.corpus", corpus.name, expected)])
        np.save(folder / f"{split}.npy", tokens)
        predicted = size.n_bytes - tokenizer.n_bytes(int(tokens[0]))
        splits[split] = {"n_bytes": size.n_bytes, "predicted_bytes": predicted, "n_characters": size.n_characters}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer.to_json()), encoding="utf-8")
    (folder / "splits.json").write_text(json.dumps(splits, indent=2), encoding="utf-8")
