"""What a run reads: a corpus, a tokenizer, how it is split and batched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from wmresearch.config.base import AllowList, Check, Config, NameAsKind, wrong
from wmresearch.config.problems import nearest


class StdlibCorpus(Config):
    """The `.py` files of the running Python's standard library: needs no network, differs by Python version."""

    kind: Literal["stdlib"] = "stdlib"
    size: Literal["full", "small"] = "full"
    """`small` is about 2 MB of it, for first steps."""


PathText = Annotated[str, Field(min_length=1)]


class TextFiles(Config):
    """The user's own text, UTF-8: one path that is split, or one for each split.

    Relative paths start at the folder of the file that gives them, or at the current folder on the command line.
    """

    kind: Literal["text"] = "text"
    path: PathText | None = None
    """A file, folder or glob, split by `data.split` in contiguous parts."""
    train: PathText | None = None
    validation: PathText | None = None
    test: PathText | None = None

    def checks(self) -> Iterator[Check]:
        each = ("train", "validation", "test")
        separate = any(getattr(self, name) is not None for name in each)
        if self.path is None and not separate:
            hint = "on the command line: data.corpus.path=PATH"
            yield Check("path", "a file, folder or glob (or train and validation, each its own)", each, hint)
        if self.path is not None and separate:
            yield Check("path", "either path, or train and validation (and test), not both", each)
        for name in ("train", "validation"):
            if separate and getattr(self, name) is None:
                yield Check(name, "a file, folder or glob beside the other splits", each)


class TfdsText(Config):
    """A text data set from tensorflow-datasets, by builder name and feature."""

    kind: Literal["tfds"] = "tfds"
    name: str = Field(min_length=1)
    """As in `tfds.builder(name)`, for example `tiny_shakespeare` or `lm1b`."""
    feature: str = "text"
    data_dir: str | None = None
    """Where the data set is or will be prepared; null means TFDS's own default."""


def _corpus_shorthand(value: Any) -> Any:
    """`stdlib/small` → `{kind: stdlib, size: small}`, also as the `kind` of a mapping."""
    kind = value.get("kind") if isinstance(value, dict) else value
    if not isinstance(kind, str) or not kind.startswith("stdlib/"):
        return value
    names = [f"stdlib/{size}" for size in get_args(StdlibCorpus.model_fields["size"].annotation)]
    if kind not in names:
        raise wrong(" or ".join(names), nearest(kind, names))
    rest = value if isinstance(value, dict) else {}
    return {"size": kind.removeprefix("stdlib/"), **rest, "kind": "stdlib"}


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


Share = Annotated[float, Field(ge=0, le=1)]


class MixtureConfig(Config):
    """Shares of a batch's rows that are tasks in place of text. The loss is over all tokens of all rows."""

    recall: Share = 0.0
    """Associative recall: pairs of a key and a value, then keys that are asked, each followed by its value."""
    induction: Share = 0.0
    """Repetition: random symbols, again and again."""

    def checks(self) -> Iterator[Check]:
        if self.recall + self.induction > 1:
            yield Check("induction", f"at most {1 - self.recall:g}: no more than all rows are tasks", ("recall",))
        if self.recall + self.induction == 0:
            yield Check("recall", "a share of one of the tasks above 0, or no mixture", ("induction",))


class DataConfig(Config):
    """Corpus, tokenizer, batch."""

    corpus: Corpus = StdlibCorpus()
    tokenizer: Tokenizer = ByteTokenizer()
    batch_size: int = Field(ge=1)
    """Sequences a step, over all devices."""
    split: Annotated[tuple[float, ...], AllowList] = (0.9, 0.05, 0.05)
    """Shares of train, validation and (where given) test."""
    mixture: MixtureConfig | None = None
    """Tasks among the rows of a batch; null: text alone. Losses of validation and test are always of text alone."""

    def checks(self) -> Iterator[Check]:
        if (
            len(self.split) not in (2, 3)
            or any(share <= 0 for share in self.split)
            or not abs(sum(self.split) - 1) <= 1e-9
        ):
            yield Check("split", "two or three positive shares that sum to 1, for example [0.9, 0.05, 0.05]")
