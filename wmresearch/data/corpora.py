"""Corpora: text in splits, prepared once as a TFDS data set under the cache folder, and known by a digest.

A prepared corpus is a folder `corpora/KEY` that holds the data set and `corpus.json`. KEY follows from the content of
the files that a corpus is made of, so a changed file makes another corpus; finding a prepared one needs no TFDS.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wmresearch.config.data import DataConfig, StdlibCorpus, TextFiles, TfdsText
from wmresearch.data.cache import Report, build_once, cache_folder, unheard
from wmresearch.data.documents import Pieces, read_stdlib, read_text

FORMAT = 1
"""Raised when prepared folders change their layout."""

DESCRIPTION = "corpus.json"


@dataclass(frozen=True)
class SplitSize:
    """How much text a split has."""

    n_bytes: int
    n_characters: int
    n_documents: int


@dataclass(frozen=True)
class PreparedCorpus:
    """A corpus that lies ready in `folder`."""

    name: str
    kind: str
    digest: str
    splits: dict[str, SplitSize]
    folder: Path
    data_set: str
    """The TFDS data set's place in `folder`."""

    def read(self) -> dict[str, str]:
        """The text of each split. Imports TFDS."""
        from wmresearch.data.official import read_documents

        texts = read_documents(self.folder / self.data_set, "text")
        return {name: "".join(texts[name]) for name in self.splits}


def open_corpus(config: DataConfig, report: Report | None = None) -> PreparedCorpus:
    """The corpus of a config; prepares it where it is not yet.

    Raises:
        ConfigError: it cannot be had (no such file, no UTF-8, a package is missing, …).
    """
    say = report or unheard
    corpus = config.corpus
    if isinstance(corpus, TfdsText):
        place = str(Path(corpus.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser())
        # an official data set does not change: its name has a version. So nothing of it is read to find a prepared one
        key = hashlib.sha256(f"{corpus.name} {corpus.feature} {place} {config.split}".encode()).hexdigest()

        def official() -> Pieces:
            from wmresearch.data.official import official_pieces

            return official_pieces(corpus, config.split, say)

        return _open(corpus, key, official, say)
    sources = read_stdlib(corpus, config.split) if isinstance(corpus, StdlibCorpus) else read_text(corpus, config.split)

    def own() -> Pieces:
        if sources.skipped:
            n, first = len(sources.skipped), sources.skipped[0]
            say(f"left out {n} file{'s' * (n > 1)} that are not UTF-8 text (the first is {first})")
        return sources.pieces()

    return _open(corpus, sources.fingerprint(), own, say)


def corpus_digest(config: DataConfig, report: Report | None = None) -> str:
    """sha256 (hex) over the name and the text of each split: the same wherever the text lay, whatever the tokenizer.

    Prepares the text where it is not yet, and makes no tokens. Raises as `open_corpus`.
    """
    return open_corpus(config, report).digest


def corpus_name(corpus: StdlibCorpus | TextFiles | TfdsText) -> str:
    """A short name for people."""
    if isinstance(corpus, StdlibCorpus):
        size = "" if corpus.size == "full" else f"/{corpus.size}"
        return f"stdlib{size} (Python {platform.python_version()})"
    if isinstance(corpus, TfdsText):
        return corpus.name if corpus.feature == "text" else f"{corpus.name} ({corpus.feature})"
    patterns = [corpus.path] if corpus.path is not None else [corpus.train, corpus.validation, corpus.test]
    return ", ".join(Path(pattern).name for pattern in patterns if pattern)


def prepared_corpora() -> list[PreparedCorpus]:
    """Every corpus in the cache folder, by name."""
    folder = cache_folder() / "corpora"
    found = [_described(path.parent) for path in folder.glob(f"[!.]*/{DESCRIPTION}")]
    return sorted(found, key=lambda corpus: (corpus.name, corpus.folder))


def _open(
    corpus: StdlibCorpus | TextFiles | TfdsText, fingerprint: str, pieces_of: Callable[[], Pieces], say: Report
) -> PreparedCorpus:
    key = hashlib.sha256(f"{FORMAT} {corpus.kind} {fingerprint}".encode()).hexdigest()[:24]
    folder = cache_folder() / "corpora" / key

    def build(partial: Path) -> None:
        pieces = pieces_of()
        say(f"preparing {corpus_name(corpus)}")
        from wmresearch.data import builders
        from wmresearch.data.official import quiet_tfds

        with quiet_tfds():
            builder_class = builders.WmStdlib if isinstance(corpus, StdlibCorpus) else builders.WmText
            builder = builder_class(pieces, data_dir=str(partial))
            builder.download_and_prepare()
        shutil.rmtree(partial / "downloads", ignore_errors=True)  # TFDS makes it; nothing was downloaded
        description = _description(corpus, pieces) | {"data_set": os.path.relpath(builder.data_dir, partial)}
        (partial / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False), encoding="utf-8")

    build_once(folder, build, say)
    return _described(folder, corpus_name(corpus))


def _description(corpus: StdlibCorpus | TextFiles | TfdsText, pieces: Pieces) -> dict[str, Any]:
    digest = hashlib.sha256()
    splits: dict[str, dict[str, int]] = {}
    for name, parts in pieces.items():
        content = "".join(text for _, text in parts)
        encoded = content.encode()
        digest.update(f"{name} {len(encoded)}\n".encode())
        digest.update(encoded)
        splits[name] = asdict(SplitSize(len(encoded), len(content), len({path for path, _ in parts})))
    return {"name": corpus_name(corpus), "kind": corpus.kind, "digest": digest.hexdigest(), "splits": splits}


def _described(folder: Path, name: str | None = None) -> PreparedCorpus:
    data = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    splits = {split: SplitSize(**size) for split, size in data["splits"].items()}
    return PreparedCorpus(name or data["name"], data["kind"], data["digest"], splits, folder, data["data_set"])
