"""Text, tokens and batches. Importing this imports neither TFDS nor TensorFlow nor grain."""

from wmresearch.data.cache import build_once, cache_folder
from wmresearch.data.catalog import CorpusRow, list_corpora, prepare
from wmresearch.data.corpora import SplitSize, corpus_digest
from wmresearch.data.mixture import training_stream
from wmresearch.data.stream import Stream, evaluation_windows
from wmresearch.data.tokenized import SplitTokens, TokenizedCorpus, load_corpus, symbols_of
from wmresearch.data.tokenizers import Tokenizer, vocab_size

__all__ = [
    "CorpusRow",
    "SplitSize",
    "SplitTokens",
    "Stream",
    "TokenizedCorpus",
    "Tokenizer",
    "build_once",
    "cache_folder",
    "corpus_digest",
    "evaluation_windows",
    "list_corpora",
    "load_corpus",
    "prepare",
    "symbols_of",
    "training_stream",
    "vocab_size",
]
