"""From text to token ids and back: bytes, characters, byte pairs. decode(encode(text)) == text for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmresearch.config import ConfigError, Problem
from wmresearch.config.data import BpeTokenizer, ByteTokenizer, CharTokenizer

Ids = Sequence[int] | NDArray[np.integer]


class Tokenizer(Protocol):
    """Token ids lie in [0, vocab_size)."""

    @property
    def vocab_size(self) -> int:
        """Symbols that a model needs."""

    def encode(self, text: str) -> NDArray[np.integer]:
        """Token ids [n], in the smallest unsigned type that holds them all."""

    def decode(self, ids: Ids) -> str:
        """The text of some ids. Bytes that are no UTF-8 (a model may write such) become U+FFFD."""

    def n_bytes(self, token: int) -> int:
        """UTF-8 bytes of the text that one token stands for."""

    def to_json(self) -> dict[str, Any]:
        """All there is to it, for `tokenizer_from_json`."""


def vocab_size(config: ByteTokenizer | CharTokenizer | BpeTokenizer) -> int | None:
    """The size that the config alone decides: 256 for bytes, as configured for byte pairs, None for characters."""
    if isinstance(config, BpeTokenizer):
        return config.vocab_size
    return 256 if isinstance(config, ByteTokenizer) else None


def make_tokenizer(config: ByteTokenizer | CharTokenizer | BpeTokenizer, splits: dict[str, str]) -> Tokenizer:
    """The tokenizer of a corpus: characters are those of all splits, byte pairs are learned from `train`."""
    if isinstance(config, ByteTokenizer):
        return Bytes()
    if isinstance(config, CharTokenizer):
        return Characters.of(splits.values())
    return BytePairs.trained(splits["train"], config.vocab_size)


def tokenizer_from_json(data: dict[str, Any]) -> Tokenizer:
    """What `to_json` described."""
    if data["kind"] == "byte":
        return Bytes()
    if data["kind"] == "char":
        return Characters(np.asarray(data["code_points"], np.uint32))
    return BytePairs(data["model"], data["vocab_size"])


def token_dtype(size: int) -> np.dtype[Any]:
    """The smallest of uint8, uint16, uint32 that holds ids below `size`."""
    return np.min_scalar_type(size - 1)


class Bytes:
    """id = the byte's value."""

    vocab_size = 256

    def encode(self, text: str) -> NDArray[np.integer]:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Ids) -> str:
        return np.asarray(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def n_bytes(self, token: int) -> int:
        del token
        return 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": "byte"}


class Characters:
    """id = the character's place among the corpus' characters in code-point order."""

    def __init__(self, code_points: NDArray[np.uint32]) -> None:
        self._code_points = code_points
        self.vocab_size = len(code_points)
        dtype = token_dtype(self.vocab_size)
        # a table from code point to id: a quick look-up, at most 4.5 MB
        self._ids = np.zeros(int(code_points[-1]) + 1, dtype)
        self._ids[code_points] = np.arange(self.vocab_size, dtype=dtype)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Characters:
        """The characters that occur in any of the texts."""
        seen = np.zeros(0x110000, bool)
        for text in texts:
            seen[_code_points(text)] = True
        return cls(np.flatnonzero(seen).astype(np.uint32))

    def encode(self, text: str) -> NDArray[np.integer]:
        """Raises ConfigError for a character that the corpus does not have."""
        points = _code_points(text)
        ids = self._ids[np.minimum(points, len(self._ids) - 1)]
        unknown = self._code_points[ids] != points
        if unknown.any():
            at = int(unknown.argmax())
            shown = f"{text[at]!r} (character {at + 1} of the text)"
            hint = "leave it out, or use the byte or bpe tokenizer"
            raise ConfigError([Problem("text", "", shown, "characters that occur in the corpus", hint)])
        return ids

    def decode(self, ids: Ids) -> str:
        return self._code_points[np.asarray(ids, np.int64)].astype("<u4").tobytes().decode("utf-32-le")

    def n_bytes(self, token: int) -> int:
        return len(chr(int(self._code_points[token])).encode())

    def to_json(self) -> dict[str, Any]:
        return {"kind": "char", "code_points": self._code_points.tolist()}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


class BytePairs:
    """Byte-level byte-pair encoding, by the `tokenizers` library; ids 0 to 255 are the single bytes.

    `vocab_size` is the size asked for, also where a small text has fewer pairs to merge: a model's size then follows
    from its config alone. The ids above `n_symbols` stand for no text; `encode` never gives them, `decode` drops them.
    """

    def __init__(self, model: str, size: int) -> None:
        import tokenizers

        self._model = tokenizers.Tokenizer.from_str(model)
        self.n_symbols = self._model.get_vocab_size()
        self.vocab_size = size
        self._dtype = token_dtype(size)

    @classmethod
    def trained(cls, text: str, size: int) -> BytePairs:
        """Merges the most frequent pairs of the text until there are `size` symbols or no pair is left."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        model.train_from_iterator(chunks(text), trainer)
        return cls(model.to_str(), size)

    def encode(self, text: str) -> NDArray[np.integer]:
        ids = [np.asarray(item.ids, self._dtype) for item in self._model.encode_batch_fast(list(chunks(text)))]
        return np.concatenate(ids) if ids else np.zeros(0, self._dtype)

    def decode(self, ids: Ids) -> str:
        known = [int(token) for token in ids if token < self.n_symbols]
        return self._model.decode(known, skip_special_tokens=False)

    def n_bytes(self, token: int) -> int:
        symbol = self._model.id_to_token(token)
        return len(symbol) if symbol else 0  # the byte-level alphabet writes each byte as one character

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bpe", "vocab_size": self.vocab_size, "model": self._model.to_str()}


_SAFE_CUT = re.compile(r"(?<=\S\n)(?=\S)")


def chunks(text: str, size: int = 1 << 16) -> Iterator[str]:
    """The text in parts of about `size` characters, cut so that the parts' tokens are those of the whole.

    The byte-level splitter never joins a line end that stands alone with what comes after it, so a cut is safe after a
    single line end between two characters that are no white space.
    """
    start = 0
    while start < len(text):
        found = _SAFE_CUT.search(text, start + size)
        end = found.start() if found else len(text)
        yield text[start:end]
        start = end
