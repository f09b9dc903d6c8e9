"""What corpora there are, and preparing one by its name: behind `wm data list` and `wm data prepare`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wmresearch.config import ConfigError, Problem
from wmresearch.config.data import DataConfig, StdlibCorpus, TextFiles, TfdsText
from wmresearch.data.cache import Report
from wmresearch.data.corpora import PreparedCorpus, SplitSize, corpus_name, open_corpus, prepared_corpora

DEFAULT_SPLIT = (0.9, 0.05, 0.05)


@dataclass(frozen=True)
class CorpusRow:
    """A corpus for people to read. What is not prepared has no splits and no digest, and `where` says how to get it."""

    name: str
    kind: str
    splits: dict[str, SplitSize]
    digest: str | None
    where: str


def list_corpora() -> list[CorpusRow]:
    """What is prepared on this machine, then what can be had."""
    prepared = [_row(corpus) for corpus in prepared_corpora()]
    names = {row.name for row in prepared}
    to_have = [
        CorpusRow(corpus_name(corpus), "stdlib", {}, None, f"wm data prepare {name}")
        for name, corpus in (("stdlib/small", StdlibCorpus(size="small")), ("stdlib", StdlibCorpus()))
        if corpus_name(corpus) not in names
    ]
    return [
        *prepared,
        *to_have,
        CorpusRow("your own text", "text", {}, None, "wm data prepare PATH (a file, folder or glob)"),
        CorpusRow("tensorflow-datasets", "tfds", {}, None, "wm data prepare NAME (for example tiny_shakespeare)"),
    ]


def prepare(
    name_or_path: str,
    report: Report | None = None,
    *,
    split: Sequence[float] = DEFAULT_SPLIT,
    feature: str = "text",
    data_dir: str | None = None,
) -> CorpusRow:
    """Prepares `stdlib`, `stdlib/small`, a path (file, folder or glob, where it exists), or else a TFDS data set.

    Raises:
        ConfigError: it is none of these, or it cannot be had.
    """
    corpus = _corpus_named(name_or_path, feature, data_dir)
    try:
        return _row(open_corpus(DataConfig(corpus=corpus, batch_size=1, split=tuple(split)), report))
    except ConfigError as error:
        raise ConfigError(_as_said(problem, corpus) for problem in error.problems) from None


def _as_said(problem: Problem, corpus: StdlibCorpus | TextFiles | TfdsText) -> Problem:
    """The problem as one of the command line: no config stands behind it, so it has no key."""
    if problem.source != "config":
        return problem
    hint = problem.hint
    if isinstance(corpus, TfdsText) and problem.path == "data.corpus.name":
        hint = f"{hint}\n    no file or folder has this name either".lstrip()
    return replace(problem, source="command line", path="", hint=hint)


def _corpus_named(name: str, feature: str, data_dir: str | None) -> StdlibCorpus | TextFiles | TfdsText:
    if name == "stdlib":
        return StdlibCorpus()
    if name == "stdlib/small":
        return StdlibCorpus(size="small")
    path = Path(name).expanduser().absolute()
    if path.exists() or glob.has_magic(name) or name.startswith((".", "/", "~")):
        return TextFiles(path=str(path))
    return TfdsText(name=name, feature=feature, data_dir=data_dir)


def _row(corpus: PreparedCorpus) -> CorpusRow:
    return CorpusRow(corpus.name, corpus.kind, corpus.splits, corpus.digest, str(corpus.folder))
