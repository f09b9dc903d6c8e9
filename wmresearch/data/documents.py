"""Where text comes from: the standard library's modules, the user's files. Nothing is written here."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

from wmresearch.config import ConfigError, Problem
from wmresearch.config.data import StdlibCorpus, TextFiles
from wmresearch.config.problems import nearest

Pieces = Mapping[str, Sequence[tuple[str, str]]]
"""Split → (document, text) in order; a split's texts, one after the other with nothing between, are its whole text."""

SPLITS = ("train", "validation", "test")
JOINER = "\n"
"""Stands between two documents of a split."""
SMALL_BYTES = 2_000_000
"""Size of `stdlib/small`, over all splits."""

_NO_STDLIB_PARTS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class Document:
    """A piece of text, the name it goes by within its corpus, and the sha256 of its bytes."""

    path: str
    text: str
    sha256: str


@dataclass(frozen=True)
class Sources:
    """Documents by split in their order; `skipped` names files that are not text."""

    splits: dict[str, list[Document]]
    shares: tuple[Fraction, ...] | None = None
    """If given, `splits` has one entry, "all", whose text is still to be cut in these shares."""
    skipped: list[str] = field(default_factory=list)

    def fingerprint(self) -> str:
        """sha256 (hex) of what was read: changes when any document, their order or the cut changes."""
        digest = hashlib.sha256(str(self.shares).encode())
        for name, documents in self.splits.items():
            digest.update(f"\n{name}".encode())
            for document in documents:
                digest.update(f"\n{document.sha256}".encode())
        return digest.hexdigest()

    def pieces(self) -> Pieces:
        """Each document but a split's last has `JOINER` at its end; cuts fall after ⌊n · share⌋ characters of all."""
        if self.shares is not None:
            return cut(joined(self.splits["all"]), self.shares)
        return {name: joined(documents) for name, documents in self.splits.items()}


def joined(documents: Sequence[Document]) -> list[tuple[str, str]]:
    """(path, text) of each document, with `JOINER` at the end of all texts but the last."""
    last = len(documents) - 1
    return [(item.path, item.text + (JOINER if i < last else "")) for i, item in enumerate(documents)]


def cut(pieces: Sequence[tuple[str, str]], shares: Sequence[Fraction]) -> Pieces:
    """The pieces in contiguous parts, one for each share, cut between characters after ⌊n · (s_1 + … + s_k)⌋ of n."""
    edges = _edges(sum(len(text) for _, text in pieces), shares)
    starts = [0, *accumulate(len(text) for _, text in pieces)]
    out: dict[str, list[tuple[str, str]]] = {}
    for name, low, high in zip(SPLITS, edges[:-1], edges[1:], strict=False):
        parts = (
            (path, text[max(low - start, 0) : max(high - start, 0)])
            for (path, text), start in zip(pieces, starts, strict=False)
        )
        out[name] = [(path, text) for path, text in parts if text]
    return out


def exact_shares(split: Sequence[float]) -> tuple[Fraction, ...]:
    """The shares as the decimals a user wrote: 0.7 + 0.1 is then 0.8, and a cut at ⌊n · 0.8⌋ is not one short."""
    return tuple(Fraction(repr(share)) for share in split)


def read_stdlib(corpus: StdlibCorpus, split: Sequence[float]) -> Sources:
    """The `.py` files of the running Python's standard library, by split, in the order of their paths.

    u(path) = sha256("split " + path) / 2^256 decides a file's split: train where u < split[0], and so on. `small` takes
    from each split, in the order of another hash, every file that still fits into the split's share of `SMALL_BYTES`.
    So neither depends on the order in which the file system lists files.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    shares = exact_shares(split)
    thresholds = [float(edge) for edge in accumulate(shares)]
    chosen: dict[str, list[tuple[str, int]]] = {name: [] for name in SPLITS[: len(shares)]}
    for path, size in _walk(folder, suffix=".py", leave_out=_NO_STDLIB_PARTS):
        u = _hash("split", path) / 2**256
        index = next((i for i, edge in enumerate(thresholds[:-1]) if u < edge), len(shares) - 1)
        chosen[SPLITS[index]].append((path, size))
    if corpus.size == "small":
        for name, share in zip(chosen, shares, strict=True):
            chosen[name] = list(_within(chosen[name], int(SMALL_BYTES * share)))
    skipped: list[str] = []
    splits = {name: _read_all(folder, sorted(path for path, _ in files), skipped) for name, files in chosen.items()}
    for name, documents in splits.items():
        if not documents:
            expected = f"a Python with its standard library: the {name} split has no .py file from {folder}"
            hint = "use your own text: data.corpus={kind: text, path: FILE}, or a larger share in data.split"
            raise ConfigError([Problem("config", "data.corpus", "stdlib", expected, hint)])
    return Sources(splits, None, skipped)


def read_text(corpus: TextFiles, split: Sequence[float]) -> Sources:
    """The user's files: one set that is cut by `split`, or one set for each split.

    Raises:
        ConfigError: nothing there, no UTF-8 (with the file and the byte), or no text in a split.
    """
    skipped: list[str] = []
    if corpus.path is not None:
        documents = _read_pattern(corpus.path, "path", skipped)
        sources = Sources({"all": documents}, exact_shares(split), skipped)
        n = sum(len(document.text) for document in documents) + len(documents) - 1
        edges = _edges(n, exact_shares(split))
        if len(set(edges)) < len(edges):
            expected = f"more text: {n} characters cut in {list(split)} leave a split empty"
            raise _problem("config", "path", corpus.path, expected)
        return sources
    patterns = {name: getattr(corpus, name) for name in SPLITS if getattr(corpus, name) is not None}
    return Sources({name: _read_pattern(pattern, name, skipped) for name, pattern in patterns.items()}, None, skipped)


def _read_pattern(pattern: str, key: str, skipped: list[str]) -> list[Document]:
    path = Path(pattern).expanduser()
    before = len(skipped)
    try:
        documents = _read_folder(path, skipped) if path.is_dir() else _read_files(path, pattern, key)
    except OSError as error:
        source = str(error.filename or path)
        raise _problem(source, key, pattern, "a file that can be read", error.strerror or "") from None
    if not documents:
        n = len(skipped) - before
        raise _problem("config", key, pattern, "text that is not empty", f"{n} files there are not text" if n else "")
    return documents


def _read_folder(folder: Path, skipped: list[str]) -> list[Document]:
    # names that begin with a dot are tools' (.git), not the user's text
    names = (name for name, _ in _walk(folder) if not any(part.startswith(".") for part in name.split("/")))
    return _read_all(folder, sorted(names), skipped)


def _read_files(path: Path, pattern: str, key: str) -> list[Document]:
    """The file, or the files of a glob: the user named them, so each has to be text."""
    names = [str(path)] if path.exists() else sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute)
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, siblings)
        hint = hint if hint.startswith("did") else f"looked at {path.absolute()}"
        raise _problem("config", key, pattern, "a file, folder or glob that exists", hint)
    documents: list[Document] = []
    for file in files:
        content = file.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            hint = f"byte {error.start} is 0x{content[error.start]:02x}; convert the file, for example with iconv"
            raise _problem(str(file), key, pattern, "text in UTF-8", hint) from None
        if text:
            documents.append(Document(file.as_posix(), text, hashlib.sha256(content).hexdigest()))
    return documents


def _problem(source: str, key: str, value: str, expected: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem(source, f"data.corpus.{key}", value, expected, hint)])


def _walk(folder: Path, leave_out: Iterable[str] = (), suffix: str = "") -> Iterator[tuple[str, int]]:
    """(path from `folder` with forward slashes, size in bytes) of the files below it, in no certain order."""
    prefix = len(str(folder)) + 1
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in leave_out]
        for name in files:
            if name.endswith(suffix):
                path = os.path.join(root, name)  # noqa: PTH118 (this loop is most of the time of opening a corpus)
                try:
                    status = os.stat(path)  # noqa: PTH116
                except FileNotFoundError:
                    continue  # a link to nowhere
                if stat.S_ISREG(status.st_mode):
                    yield path[prefix:].replace(os.sep, "/"), status.st_size


def _read_all(folder: Path, names: Iterable[str], skipped: list[str]) -> list[Document]:
    """The files that are text: UTF-8 without a zero byte. Empty ones are left out, others go to `skipped`."""
    documents: list[Document] = []
    for name in names:
        content = (folder / name).read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            skipped.append(name)
        elif text:
            documents.append(Document(name, text, hashlib.sha256(content).hexdigest()))
    return documents


def _hash(purpose: str, path: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{purpose} {path}".encode()).digest())


def _within(files: Iterable[tuple[str, int]], limit: int) -> Iterator[tuple[str, int]]:
    for path, size in sorted(files, key=lambda item: _hash("small", item[0])):
        if size <= limit:
            limit -= size
            yield path, size


def _edges(n: int, shares: Iterable[Fraction]) -> list[int]:
    edges = [0, *(int(n * edge) for edge in accumulate(shares))]
    return [*edges[:-1], n]  # shares sum to 1 only as nearly as floats do
