import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.examples import has, problems_of
from wmresearch.config import yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "no",
        "yes",
        "null",
        "~",
        "",
        "1e-3",
        "12:30",
        "0o7",
        "0x1f",
        ".inf",
        "+1",
        "2001-01-01",
        "<<",
        "=",
        "true",
        "1_0",
        " a",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b and repr(a) == repr(b)


@given(PLAIN)
def test_parse_inverts_write(value):
    assert same(yaml_text.parse(yaml_text.write(value), "x"), value)


def test_write_keeps_nan():
    assert math.isnan(yaml_text.parse(yaml_text.write({"a": math.nan}), "x")["a"])


@given(st.text(max_size=40))
def test_any_text_gives_a_value_or_problems(text):
    for source, _, _, expected in problems_of(yaml_text.parse, text, "x"):
        assert source.startswith("x")
        assert expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("1E3", 1000.0), ("1.", 1.0), (".5", 0.5), ("+.5", 0.5), ("-1.5e+2", -150.0), ("3.0", 3.0),
        (".inf", math.inf), ("-.INF", -math.inf), ("+.inf", math.inf),
        ("0", 0), ("-0", 0), ("+12", 12), ("010", 10), ("0o10", 8), ("0x1F", 31),
        ("true", True), ("True", True), ("FALSE", False),
        ("null", None), ("Null", None), ("~", None), ("", None),
        # YAML 1.1 would read these otherwise
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("Off", "Off"), ("y", "y"),
        ("12:30", "12:30"), ("190:20:30", "190:20:30"), ("1_000", "1_000"), ("0b11", "0b11"),
        ("2001-01-01", "2001-01-01"), ("<<", "<<"), ("=", "="), ("tRue", "tRue"), ("-0o7", "-0o7"), ("1e", "1e"),
        ("'1'", "1"), ('"null"', "null"), ("!!str 1", "1"), ("!!float 1", 1.0),
    ],
)  # fmt: skip
def test_core_rules_of_yaml_1_2(text, value):
    assert same(yaml_text.parse(text, "x"), value)


def test_an_alias_is_a_thing_of_its_own():
    value = yaml_text.parse("a: &x {k: [1]}\nb: *x", "x")
    value["a"]["k"].append(2)
    assert value["b"] == {"k": [1]}


@pytest.mark.parametrize(
    ("text", "source", "path", "value", "words"),
    [
        ("a: {b: 1,\n b: 2}", "x:2", "a.b", "", "line 1 gives it too"),
        ("1: 3", "x:1", "", "1", "put it in quotes: '1'"),
        ("[1]: 3", "x:1", "", "…", "a name (a string) as key"),
        ("? {a: 1}\n: 3", "x:1", "", "…", "a name (a string) as key"),
        ("a: &a [*a]", "x:1", "a.0", "", "an alias to something outside itself"),
        ("&a {k: *a}", "x:1", "k", "", "an alias to something outside itself"),
        ("a: [1", "x:1:6", "", "", "YAML that can be read; the parser says"),
        ("a:\n\tb: 1", "x:2:1", "", "", "indent with spaces, not with tabs"),
        ("a: 1\n---\nb: 2", "x:2:1", "", "", "another document"),
        ("a: !!python/object:os.system x", "x:1", "a", "!!python/object:os.system", "without this tag"),
        ("a: !!timestamp x", "x:1", "a", "!!timestamp", "without this tag"),
        ("a: !!set {b}", "x:1", "a", "!!set", "without this tag"),
        ("!!bool a", "x:1", "", "a", "the tag !!bool fits"),
        ("!!int 1.5", "x:1", "", "1.5", "the tag !!int fits"),
        ("!!map [1]", "x:1:1", "", "", "YAML that can be read"),
        ("a: *b", "x:1:4", "", "", "undefined alias"),
        ("a: " + "9" * 4000, "x:1", "a", "9" * 20 + "…", "at most 1000 digits"),
        ("a: 0x" + "f" * 4000, "x:1", "a", "0x" + "f" * 18 + "…", "at most 1000 digits"),
        ("a: " + "[" * 60 + "]" * 60, "x:1", "a.0.0", "", "at most 50 levels"),
        ("[" * 5000 + "]" * 5000, "x", "", "", "at most 50 levels"),
        ("\x00", "x", "", "", "YAML that can be read"),
    ],
)  # fmt: skip
def test_what_a_config_must_not_hold(text, source, path, value, words):
    found = problems_of(yaml_text.parse, text, "x")
    assert any(p[:3] == (source, path, value) and words in p[3] for p in found), found


def test_repeated_keys_are_all_reported_at_once():
    assert len(problems_of(yaml_text.parse, "a: 1\na: 2\nb: {c: 1, c: 2}\n3: 4", "x")) == 3


def test_aliases_that_multiply_are_counted_not_written_out():
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    found = problems_of(yaml_text.parse, "\n".join(lines), "x")
    assert has(found, "", "", "at most 100000 values")


@pytest.mark.parametrize("data", [b"a: 1", b"\xef\xbb\xbfa: 1", b"a: 1\r\n"])
def test_files_with_a_mark_or_other_line_ends_are_read(tmp_path, data):
    path = tmp_path / "a.yaml"
    path.write_bytes(data)
    assert yaml_text.read(path) == {"a": 1}


def test_files_that_cannot_be_read(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: é".encode("latin-1"))
    cases = [(latin, "byte 3 is not UTF-8"), (tmp_path, "Is a directory"), (tmp_path / "no.yaml", "No such file")]
    for path, words in cases:
        ((source, _, _, said),) = problems_of(yaml_text.read, path)
        assert source == str(path)
        assert words in said
