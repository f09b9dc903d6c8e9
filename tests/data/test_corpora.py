"""Laws: a digest follows from the splits' text alone; preparing happens once; what is read back is what went in."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wmresearch.config import ConfigError
from wmresearch.config.data import DataConfig, TextFiles
from wmresearch.data import builders, corpus_digest, list_corpora, load_corpus, prepare
from wmresearch.data.corpora import open_corpus

TEXT = "Grüße, 𝄞 world!\r\nno newline at the end: ÿ" * 40


def config(path: Path, **keys) -> DataConfig:
    return DataConfig(corpus=TextFiles(path=str(path)), batch_size=1, **keys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.mark.parametrize("tokenizer", ["byte", "char", {"kind": "bpe", "vocab_size": 300}])
def test_tokens_of_all_splits_are_the_whole_text(file: Path, tokenizer) -> None:
    said: list[str] = []
    corpus = load_corpus(config(file, tokenizer=tokenizer), said.append)
    assert list(corpus.splits) == ["train", "validation", "test"]
    assert corpus.name == "text.txt"
    assert "".join(corpus.tokenizer.decode(split.tokens) for split in corpus.splits.values()) == TEXT
    for split in corpus.splits.values():
        text = corpus.tokenizer.decode(split.tokens)
        assert isinstance(split.tokens, np.memmap)
        assert split.n_bytes == len(text.encode())
        assert split.n_characters == len(text)
        predicted = sum(corpus.tokenizer.n_bytes(int(token)) for token in split.tokens[1:])
        assert split.predicted_bytes == predicted
    assert said
    said.clear()
    again = load_corpus(config(file, tokenizer=tokenizer), said.append)
    assert said == []
    assert again.digest == corpus.digest


def test_char_vocabulary_has_the_characters_of_every_split(tmp_path: Path) -> None:
    for name, text in {"train": "abc" * 9, "validation": "xyz" * 9}.items():
        (tmp_path / name).write_text(text)
    corpus = TextFiles(train=str(tmp_path / "train"), validation=str(tmp_path / "validation"))
    loaded = load_corpus(DataConfig(corpus=corpus, tokenizer="char", batch_size=1))
    assert loaded.tokenizer.vocab_size == 6
    assert list(loaded.splits) == ["train", "validation"]


def test_digest_is_of_split_names_and_text(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = corpus_digest(config(file, split=(0.5, 0.5)))
    n = len(TEXT) // 2
    expected = hashlib.sha256()
    for name, text in (("train", TEXT[:n]), ("validation", TEXT[n:])):
        expected.update(f"{name} {len(text.encode())}\n".encode() + text.encode())
    assert digest == expected.hexdigest()

    (tmp_path / "train").write_bytes(TEXT[:n].encode())
    (tmp_path / "valid").write_bytes(TEXT[n:].encode())
    separate = TextFiles(train=str(tmp_path / "train"), validation=str(tmp_path / "valid"))
    assert corpus_digest(DataConfig(corpus=separate, batch_size=7, tokenizer="char")) == digest
    monkeypatch.setenv("WMRESEARCH_CACHE", str(tmp_path / "elsewhere"))
    assert corpus_digest(config(file.rename(tmp_path / "renamed"), split=(0.5, 0.5))) == digest
    assert corpus_digest(config(tmp_path / "renamed", split=(0.6, 0.4))) != digest


def test_a_changed_file_is_seen_though_its_time_and_size_are_the_same(file: Path) -> None:
    before, status = corpus_digest(config(file)), file.stat()
    file.write_bytes(TEXT.replace("world", "World").encode())
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert corpus_digest(config(file)) != before
    file.write_bytes(TEXT.encode())
    assert corpus_digest(config(file)) == before


def test_long_texts_span_records_and_keep_their_order(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "RECORD_CHARACTERS", 7)
    assert "".join(open_corpus(config(file)).read().values()) == TEXT


def test_skipped_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_text(TEXT)
    (tmp_path / "t" / "b").write_bytes(b"\xff")
    said: list[str] = []
    open_corpus(config(tmp_path / "t"), said.append)
    assert "left out 1 file" in said[0]


def test_a_split_of_one_token_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a").write_text("abcdefghij")
    with pytest.raises(ConfigError, match="the validation split has 1 token, and needs two"):
        load_corpus(config(tmp_path / "a", split=(0.9, 0.1)))
    assert [path for path in (cache / "tokens").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


TWO_AT_ONCE = """
import sys
from wmresearch.config.data import DataConfig, TextFiles
from wmresearch.data import load_corpus
config = DataConfig(corpus=TextFiles(path=sys.argv[1]), tokenizer={"kind": "bpe", "vocab_size": 300}, batch_size=1)
sys.stdin.read(1)
corpus = load_corpus(config, lambda message: print(message, file=sys.stderr))
print(corpus.digest, len(corpus.splits["train"].tokens), "tensorflow_datasets" in sys.modules)
"""


def test_two_processes_prepare_at_once_then_a_third_needs_no_tfds(file: Path, cache: Path) -> None:
    command = [sys.executable, "-c", TWO_AT_ONCE, str(file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:  # both have imported what they need, or nearly
        process.stdin.write("x")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({out.split()[0] + out.split()[1] for out, _ in outputs}) == 1
    prepared = [said for _, said in outputs if "preparing text.txt" in said]
    assert len(prepared) == 1, outputs  # one did the work, the other waited for it
    third = subprocess.run(command, input="x", capture_output=True, text=True, timeout=60, check=True)
    assert third.stdout.split()[2] == "False"
    assert third.stderr == ""
    assert not list(cache.rglob("*.partial"))


def test_importing_the_room_imports_nothing_heavy() -> None:
    code = "import sys, wmresearch.data; print([m for m in sys.modules if m in sys.argv])"
    heavy = ["tensorflow_datasets", "tensorflow", "grain", "tokenizers", "jax", "array_record"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_list_and_prepare(file: Path) -> None:
    before = list_corpora()
    assert all(row.digest is None for row in before)
    assert [row.kind for row in before] == ["stdlib", "stdlib", "text", "tfds"]
    row = prepare(str(file))
    assert row.digest == corpus_digest(config(file))
    assert {name: size.n_documents for name, size in row.splits.items()} == dict.fromkeys(row.splits, 1)
    assert sum(size.n_bytes for size in row.splits.values()) == len(TEXT.encode())
    assert list_corpora() == [row, *before]


def test_prepare_refuses_on_the_command_lines_terms(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)^command line = .*nowhere\.txt.*a file, folder or glob that exists"):
        prepare(str(tmp_path / "nowhere.txt"))
    with pytest.raises(ConfigError, match=r"(?s)^command line = tiny_shakespear\n.*did you mean 'tiny_shakespeare'"):
        prepare("tiny_shakespear")


def test_real_stdlib_goes_through_the_real_builder() -> None:
    row = prepare("stdlib/small")
    assert row.name.startswith("stdlib/small (Python ")
    assert 1.8e6 <= sum(size.n_bytes for size in row.splits.values()) <= 2.01e6
    assert row in list_corpora()
