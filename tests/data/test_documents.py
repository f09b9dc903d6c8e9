"""Laws: parts put together are the whole; what is read depends on content, not on the file system's order."""

import os
import random
import sysconfig
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.config import ConfigError
from wmresearch.config.data import StdlibCorpus, TextFiles
from wmresearch.data import documents
from wmresearch.data.documents import Document, cut, exact_shares, joined, read_stdlib, read_text

SPLIT = (0.9, 0.05, 0.05)


def whole(pieces) -> str:
    return "".join(text for _, text in pieces)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=6), st.sampled_from([(0.9, 0.1), SPLIT, (0.7, 0.1, 0.2)]))
def test_cut_is_contiguous_and_loses_nothing(texts: list[str], split: tuple[float, ...]) -> None:
    pieces = joined([Document(str(i), text, "") for i, text in enumerate(texts)])
    assert whole(pieces) == "\n".join(texts)
    parts = cut(pieces, exact_shares(split))
    assert "".join(whole(part) for part in parts.values()) == "\n".join(texts)
    n = len("\n".join(texts))
    assert len(whole(parts["train"])) == int(n * Fraction(str(split[0])))


@pytest.mark.parametrize("n", [10, 100, 1000, 1_115_394])
def test_cuts_fall_where_the_written_decimals_say(n: int) -> None:
    # as floats, .7 + .1 is below .8, and the second cut would be one short
    sizes = [len(whole(part)) for part in cut([("a", "x" * n)], exact_shares((0.7, 0.1, 0.2))).values()]
    assert sizes == [n * 7 // 10, n * 8 // 10 - n * 7 // 10, n - n * 8 // 10]


def test_tiny_shakespeare_sizes() -> None:
    sizes = {k: len(whole(v)) for k, v in cut([("a", "x" * 1_115_394)], exact_shares((0.9, 0.1))).items()}
    assert sizes == {"train": 1_003_854, "validation": 111_540}


def test_cut_is_between_characters_not_bytes(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("äöü€𝄞" * 20, encoding="utf-8")
    parts = read_text(TextFiles(path=str(file)), (0.9, 0.1)).pieces()
    assert whole(parts["train"]) == "äöü€𝄞" * 18


def test_folder_reads_all_text_in_path_order(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": b"B",
        "a/z.md": b"Z",
        "a/latin1": b"\xe4",
        "a/zero.bin": b"a\0b",
        "empty": b"",
        ".git/config": b"hidden",
        ".hidden": b"hidden",
    }.items():
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_bytes(content)
    sources = read_text(TextFiles(path=str(tmp_path / "t")), (0.5, 0.5))
    assert [(item.path, item.text) for item in sources.splits["all"]] == [("a/z.md", "Z"), ("b.txt", "B")]
    assert sorted(sources.skipped) == ["a/latin1", "a/zero.bin"]


def test_glob_and_separate_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    by_glob = read_text(TextFiles(path=str(tmp_path / "*.txt")), (0.5, 0.5)).pieces()
    assert whole(by_glob["train"]) + whole(by_glob["validation"]) == "a.txt\nb.txt"
    separate = TextFiles(train=str(tmp_path / "*.txt"), validation=str(tmp_path / "c.md"))
    assert {k: whole(v) for k, v in read_text(separate, SPLIT).pieces().items()} == {
        "train": "a.txt\nb.txt",
        "validation": "c.md",
    }


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t", b"abc\xff", r"(?s)t: data\.corpus\.path = .*text in UTF-8.*byte 3 is 0xff"),
        ("t", b"", r"(?s)data\.corpus\.path = .*text that is not empty"),
        ("t", b"abc", r"(?s)3 characters cut in \[0\.9, 0\.05, 0\.05\] leave a split empty"),
        ("notes.txt", None, r"(?s)a file, folder or glob that exists.*did you mean 'note\.txt'"),
    ],
)
def test_errors_say_where_and_what(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    if content is None:
        (tmp_path / "note.txt").write_text("x")
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        read_text(TextFiles(path=str(tmp_path / name)), SPLIT)


def test_error_of_separate_files_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(ConfigError, match=r"data\.corpus\.validation"):
        read_text(TextFiles(train=str(tmp_path / "a"), validation=str(tmp_path / "b")), SPLIT)


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library of 300 modules, with what has to be left out beside them."""
    folder = tmp_path / "python"
    sizes = random.Random(0)
    for index in range(300):
        file = folder / f"package{index % 7}" / f"module{index}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {index}\n" * sizes.randrange(1, 50))
    for name in ("test/a.py", "json/tests/a.py", "idlelib/idle_test/a.py", "site-packages/a.py", "dist-packages/a.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no")
    (folder / "latin1.py").write_bytes(b"# \xe4")
    (folder / "data.txt").write_text("no")
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(folder)}.__getitem__)
    return folder


def test_stdlib_leaves_out_tests_packages_and_what_is_no_text(stdlib: Path) -> None:
    sources = read_stdlib(StdlibCorpus(), SPLIT)
    paths = [item.path for items in sources.splits.values() for item in items]
    assert len(paths) == len(set(paths)) == 300
    assert all(path.startswith("package") for path in paths)
    assert sources.skipped == ["latin1.py"]
    assert all(
        [item.path for item in items] == sorted(item.path for item in items) for items in sources.splits.values()
    )
    assert 240 <= len(sources.splits["train"]) <= 290


def test_a_files_split_depends_on_its_path_alone(stdlib: Path) -> None:
    before = {item.path: name for name, items in read_stdlib(StdlibCorpus(), SPLIT).splits.items() for item in items}
    (stdlib / "package0" / "new.py").write_text("x")
    (stdlib / "package0" / "module0.py").unlink()
    after = {item.path: name for name, items in read_stdlib(StdlibCorpus(), SPLIT).splits.items() for item in items}
    assert all(after[path] == name for path, name in before.items() if path in after)


@pytest.mark.parametrize("size", ["full", "small"])
def test_stdlib_does_not_depend_on_the_order_of_listing(
    stdlib: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(documents, "SMALL_BYTES", 20_000)
    corpus = StdlibCorpus.model_validate({"size": size})
    expected = read_stdlib(corpus, SPLIT).fingerprint()
    walk = os.walk

    def other_order(top):
        for root, folders, files in walk(top):
            folders.reverse()
            random.Random(1).shuffle(files)
            yield root, folders, files

    monkeypatch.setattr(os, "walk", other_order)
    assert read_stdlib(corpus, SPLIT).fingerprint() == expected


def test_small_fills_each_splits_share(stdlib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SMALL_BYTES", 20_000)
    full, small = read_stdlib(StdlibCorpus(), SPLIT), read_stdlib(StdlibCorpus(size="small"), SPLIT)
    for name, share in zip(full.splits, SPLIT, strict=True):
        assert {item.path for item in small.splits[name]} <= {item.path for item in full.splits[name]}
        left = share * 20_000 - sum(len(item.text) for item in small.splits[name])
        assert left >= 0
        assert all(len(item.text) > left for item in full.splits[name] if item not in small.splits[name])


def test_real_small_stdlib_is_about_two_megabytes() -> None:
    sources = read_stdlib(StdlibCorpus(size="small"), SPLIT)
    sizes = [sum(len(item.text.encode()) for item in items) for items in sources.splits.values()]
    assert all(0.9 * share * 2e6 <= size <= share * 2e6 for size, share in zip(sizes, SPLIT, strict=True)), sizes


def test_a_python_without_modules_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path / "none")}.__getitem__)
    with pytest.raises(ConfigError, match="use your own text"):
        read_stdlib(StdlibCorpus(), SPLIT)
