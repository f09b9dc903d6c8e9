"""Official TFDS builders, prepared without TensorFlow and without a network."""

import hashlib
import importlib.util
import shutil
import socket
import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

from wmresearch.config import ConfigError
from wmresearch.config.data import DataConfig, TfdsText
from wmresearch.data import corpus_digest, load_corpus, official
from wmresearch.data.corpora import open_corpus

ROOT = Path(__file__).parents[2]
SHAKESPEARE = ROOT.parent / "shared" / "data" / "tiny_shakespeare" / "input.txt"
without_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is not None, reason="about what happens where TensorFlow is not installed"
)


def config(name: str, data_dir: Path, **keys) -> DataConfig:
    return DataConfig(corpus=TfdsText(name=name, data_dir=str(data_dir), **keys), batch_size=1)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look-up of a host fails at once, and is noted."""
    asked: list[str] = []

    def refuse(host, *_, **__):
        asked.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason=f"needs Tiny Shakespeare's text at {SHAKESPEARE}")
def test_tiny_shakespeare_by_its_real_builder(
    tmp_path: Path, no_network: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True)
    shutil.copy(SHAKESPEARE, manual / "input.txt")
    corpus = load_corpus(config("tiny_shakespeare", tmp_path / "data"))
    assert no_network == []
    assert capfd.readouterr() == ("", "")
    sizes = {name: split.n_characters for name, split in corpus.splits.items()}
    assert sizes == {"train": 1_003_854, "validation": 55_770, "test": 55_770}
    text = "".join(corpus.tokenizer.decode(split.tokens) for split in corpus.splits.values())
    assert hashlib.sha256(text.encode()).digest() == hashlib.sha256(SHAKESPEARE.read_bytes()).digest()
    shutil.rmtree(tmp_path / "data")  # the corpus has its own copy
    assert corpus_digest(config("tiny_shakespeare", tmp_path / "data")) == corpus.digest


def test_no_network_is_said_at_once(tmp_path: Path, no_network: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)data\.corpus\.name = tiny_shakespeare.*lay the files .*downloads/manual"
    ):
        open_corpus(config("tiny_shakespeare", tmp_path))
    assert 1 <= len(no_network) <= 1 + official.RETRIES


def test_a_silent_network_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda _host, _port, *rest, **keys: real("127.0.0.1", port, *rest, **keys)
        )
        monkeypatch.setattr(official, "READ_SECONDS", 0.2)
        monkeypatch.setattr(official, "CONNECT_SECONDS", 0.2)
        monkeypatch.setattr(official, "RETRIES", 1)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ConfigError, match=r"(?is)timed out"):
            open_corpus(config("tiny_shakespeare", tmp_path))


def test_wrong_names_are_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)name = tiny_shakspeare\n.*did you mean 'tiny_shakespeare'\?"):
        open_corpus(config("tiny_shakspeare", tmp_path))
    with pytest.raises(ConfigError, match=r"(?s)name = huggingface:c4\n.*a name without a namespace"):
        open_corpus(config("huggingface:c4", tmp_path))
    with pytest.raises(ConfigError, match=r"(?s)feature = txt\n.*a text feature of tiny_shakespeare.*'text'"):
        open_corpus(config("tiny_shakespeare", tmp_path, feature="txt"))


class NeedsTensorflow(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, _):
        from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as tf

        return {"train": iter([(0, {"text": tf.strings.lower("A")})])}

    def _generate_examples(self):
        return iter(())


def examples(split: str):
    return ((index, {"text": f"{split} {index}"}) for index in range(10))


class OnlyTrain(NeedsTensorflow):
    def _split_generators(self, _):
        return {"train": examples("train")}


class TrainAndTest(NeedsTensorflow):
    def _split_generators(self, _):
        return {"train": examples("train"), "test": examples("test")}


@without_tensorflow
def test_a_builder_that_needs_tensorflow_names_the_extra(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)needs_tensorflow.*pip install 'wmresearch\[tensorflow\]'"):
        open_corpus(config("needs_tensorflow", tmp_path))
    assert "tensorflow" not in sys.modules


def test_splits_that_a_data_set_lacks_are_cut_from_train(tmp_path: Path) -> None:
    texts = open_corpus(config("only_train", tmp_path)).read()
    assert list(texts) == ["train", "validation", "test"]
    whole = "".join(texts.values())
    assert sorted(whole.split("\n")) == [f"train {i}" for i in range(10)]
    assert len(texts["train"]) == int(len(whole) * 0.9)


def test_a_data_sets_own_test_split_is_kept(tmp_path: Path) -> None:
    texts = open_corpus(config("train_and_test", tmp_path)).read()
    assert sorted(texts["test"].split("\n")) == [f"test {i}" for i in range(10)]
    assert sorted((texts["train"] + texts["validation"]).split("\n")) == [f"train {i}" for i in range(10)]
    assert len(texts["train"]) == int(79 * 0.95)
