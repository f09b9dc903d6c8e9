"""Laws: decode inverts encode; tokens' bytes add up to the text's; a chunked text has the tokens of the whole."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmresearch.config import ConfigError
from wmresearch.config.data import BpeTokenizer, ByteTokenizer, CharTokenizer
from wmresearch.data import vocab_size
from wmresearch.data.tokenizers import BytePairs, Bytes, Characters, chunks, tokenizer_from_json

SAMPLE = "def f(x):\n    return x  # größer als 0\n\n\nThe cat sat on the mat, the cat's mat. 123 \t 𝄞\r\n" * 20
BPE = BytePairs.trained(SAMPLE, 300)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # surrogates are no text: UTF-8 cannot write them


@given(TEXT)
def test_round_trip(text: str) -> None:
    tokenizers = [Bytes(), BPE] + ([Characters.of([text, SAMPLE])] if text else [])
    for tokenizer in tokenizers:
        for same in (tokenizer, tokenizer_from_json(tokenizer.to_json())):
            ids = same.encode(text)
            assert same.decode(ids) == text
            assert all(0 <= token < same.vocab_size for token in ids)
            assert sum(same.n_bytes(int(token)) for token in ids) == len(text.encode())


def test_bytes_are_utf8() -> None:
    assert Bytes().encode("a€").tolist() == [97, 0xE2, 0x82, 0xAC]
    assert Bytes().decode([0xE2, 0x82]) == "\ufffd"


def test_characters_are_in_code_point_order() -> None:
    tokenizer = Characters.of(["cab", "b𝄞"])
    assert tokenizer.vocab_size == 4
    assert tokenizer.encode("abc𝄞").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("unknown", ["d", "A", "𝄞", "\0"])
def test_a_character_outside_the_corpus_is_said(unknown: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)character 3 of the text.*characters that occur in the corpus"):
        Characters.of(["abc"]).encode("ab" + unknown)


def test_ids_take_the_smallest_type() -> None:
    assert Bytes().encode("a").dtype == np.uint8
    assert Characters.of(map(chr, range(32, 32 + 256))).encode("a").dtype == np.uint8
    assert Characters.of(map(chr, range(32, 32 + 257))).encode("a").dtype == np.uint16
    assert BytePairs.trained("abc", 70_000).encode("a").dtype == np.uint32


def test_vocabulary_from_the_config_alone() -> None:
    assert vocab_size(ByteTokenizer()) == 256
    assert vocab_size(BpeTokenizer(vocab_size=1234)) == 1234
    assert vocab_size(CharTokenizer()) is None


def test_byte_pairs_keep_the_size_asked_for_and_never_use_the_rest() -> None:
    tokenizer = BytePairs.trained("abab", 1000)
    assert tokenizer.vocab_size == 1000
    assert 256 < tokenizer.n_symbols < 1000
    assert tokenizer.encode("abab" * 100).max() < tokenizer.n_symbols
    assert tokenizer.decode([999, *tokenizer.encode("abab"), tokenizer.n_symbols]) == "abab"
    assert BPE.n_symbols == 300
    assert len(BPE.encode(SAMPLE)) < len(SAMPLE.encode()) / 2


@settings(max_examples=50)
@given(st.text(st.sampled_from("ab \n\t.'1é\x1f\u3000"), max_size=200), st.integers(1, 20))
def test_chunks_have_the_tokens_of_the_whole(text: str, size: int) -> None:
    parts = list(chunks(text, size))
    assert "".join(parts) == text
    separate = [token for part in parts for token in BPE.encode(part)]
    assert separate == list(BPE._model.encode(text).ids)


def test_training_is_the_same_in_another_process() -> None:
    code = (
        "import sys; from wmresearch.data.tokenizers import BytePairs;"
        "sys.stdout.write(BytePairs.trained(sys.stdin.read(), 400).to_json()['model'])"
    )
    text = SAMPLE.replace("\r", "")
    outputs = {
        subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert outputs == {BytePairs.trained(text, 400).to_json()["model"].encode()}
