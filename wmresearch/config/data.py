"""What a run reads: a corpus, a tokenizer, how it is split and batched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from wmresearch.config.base import AllowList, Check, Config, NameAsKind


class StdlibCorpus(Config):
    """The `.py` files of the running Python's standard library: needs no network, differs by Python version."""

    kind: Literal["stdlib"] = "stdlib"
    size: Literal["full", "small"] = "full"
    """`small` is about 2 MB of it, for first steps."""


class TextFiles(Config):
    """The user's own text, UTF-8: one path that is split, or one for each split."""

    kind: Literal["text"] = "text"
    path: str | None = None
    """A file, folder or glob, split by `data.split` in contiguous parts."""
    train: str | None = None
    validation: str | None = None
    test: str | None = None

    def checks(self) -> Iterator[Check]:
        separate = self.train is not None or self.validation is not None or self.test is not None
        if self.path is None and not separate:
            yield Check("path", "a file, folder or glob (or train and validation, each its own)")
        if self.path is not None and separate:
            yield Check("path", "either path, or train and validation (and test), not both")
        if separate and (self.train is None or self.validation is None):
            missing = "train" if self.train is None else "validation"
            yield Check(missing, "a file, folder or glob beside the other splits")


class TfdsText(Config):
    """A text data set from tensorflow-datasets, by builder name and feature."""

    kind: Literal["tfds"] = "tfds"
    name: str = Field(min_length=1)
    """As in `tfds.builder(name)`, for example `tiny_shakespeare` or `lm1b`."""
    feature: str = "text"
    data_dir: str | None = None
    """Where the data set is or will be prepared; null means TFDS's own default."""


def _corpus_shorthand(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("stdlib/"):
        return {"kind": "stdlib", "size": value.removeprefix("stdlib/")}
    return value


Corpus = Annotated[
    StdlibCorpus | TextFiles | TfdsText, Field(discriminator="kind"), NameAsKind, BeforeValidator(_corpus_shorthand)
]


class ByteTokenizer(Config):
    """Each byte of the UTF-8 text is a token: 256 symbols."""

    kind: Literal["byte"] = "byte"


class CharTokenizer(Config):
    """Each character is a token; the vocabulary is every character of the whole corpus, in code-point order."""

    kind: Literal["char"] = "char"


class BpeTokenizer(Config):
    """Byte-level byte-pair encoding, trained on the train split."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=4096, ge=256)
    """Symbols, the 256 bytes included."""


Tokenizer = Annotated[ByteTokenizer | CharTokenizer | BpeTokenizer, Field(discriminator="kind"), NameAsKind]


class DataConfig(Config):
    """Corpus, tokenizer, batch."""

    corpus: Corpus = StdlibCorpus()
    tokenizer: Tokenizer = ByteTokenizer()
    batch_size: int = Field(ge=1)
    """Sequences a step, over all devices."""
    split: Annotated[tuple[float, ...], AllowList] = (0.9, 0.05, 0.05)
    """Shares of train, validation and (where given) test."""

    def checks(self) -> Iterator[Check]:
        if len(self.split) not in (2, 3) or any(share <= 0 for share in self.split) or abs(sum(self.split) - 1) > 1e-9:
            yield Check("split", "two or three positive shares that sum to 1, for example [0.9, 0.05, 0.05]")
