"""What `key=value` on top of a file means."""

import pytest

from tests.config.examples import has, problems_of
from wmresearch.config import load_run
from wmresearch.config.draft import Draft, Origin, parse_overrides


@pytest.fixture
def load(base):
    return lambda *overrides: load_run(base, overrides)


def test_a_dotted_key_sets_one_value(load):
    assert load("optimizer.learning_rate=1e-4").optimizer.learning_rate == 1e-4
    assert load(" model.d_model =64").model.d_model == 64
    assert load("training.evaluate_every=").training.evaluate_every is None
    assert load("optimizer.betas=[0, 0.5]").optimizer.betas == (0, 0.5)
    assert load("tracking.wandb.project=a=b").tracking.wandb.project == "a=b"


def test_a_mapping_is_merged(load):
    model = load("model={dropout: 0.1, n_layers: 3}").model
    assert (model.dropout, model.n_layers, model.d_model) == (0.1, 3, 128)


def test_a_mapping_with_a_kind_replaces(load):
    assert load("optimizer.schedule={kind: linear}").optimizer.schedule.warmup == 0
    assert load("model.head_output={kind: factorized, rank: 3}").model.head_output.rank == 3


def test_a_new_kind_empties_its_mapping_and_the_same_kind_does_not(load):
    assert load("optimizer.schedule.kind=linear").optimizer.schedule.warmup == 0
    assert load("optimizer.schedule.kind=cosine").optimizer.schedule.warmup == 20
    assert load("optimizer.kind=adamw").optimizer.learning_rate == 3e-3


def test_a_kind_the_file_leaves_out_may_be_given(write, tiny):
    del tiny["optimizer"]["kind"]
    assert load_run(write("a.yaml", tiny), ["optimizer.kind=adamw"]).optimizer.learning_rate == 3e-3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_kind_and_its_keys_in_any_order(load, order):
    overrides = ["model.head_output.rank=3", "model.head_output.kind=factorized"]
    assert load(*(overrides[i] for i in order)).model.head_output.rank == 3


def test_otherwise_the_last_one_wins(load):
    assert load("seed=1", "seed=2").seed == 2
    assert load("model.head_output={kind: factorized, rank: 3}", "model.head_output.rank=5").model.head_output.rank == 5
    overrides = ["model.head_output={kind: factorized, rank: 3}", "model.head_output.kind=standard"]
    assert load(*overrides).model.head_output.kind == "standard"
    assert load(*reversed(overrides)).model.head_output.kind == "factorized"


def test_kinds_go_before_their_keys_and_after_what_replaces_them():
    texts = ["a.b.c=1", "a.b.d.e=2", "a.b={kind: x}", "a.b.f=3", "a.b.kind=y", "a.kind=z"]
    assert [key for key, _ in parse_overrides(texts, [])] == ["a.kind", "a.b.c", "a.b.d.e", "a.b", "a.b.kind", "a.b.f"]


def test_the_key_of_a_shorthand(load):
    assert load("data.corpus.size=full").data.corpus.size == "full"
    assert load("data.corpus=stdlib").data.corpus.size == "full"
    assert load("data.corpus.kind=stdlib/small").data.corpus.size == "small"
    assert load("data.tokenizer=bpe", "data.tokenizer.vocab_size=300").data.tokenizer.vocab_size == 300


def test_a_key_below_a_plain_value(base):
    problems = problems_of(load_run, base, ["model.d_model.x=3", "optimizer.betas.0=0.8"])
    assert has(problems, "model.d_model", '{"x": 3}', "a whole number")
    assert has(problems, "optimizer.betas", '{"0": 0.8}', "a list of 2 entries")
    assert {source for source, *_ in problems} == {"command line"}


@pytest.mark.parametrize("text", ["", "foo", "=3", "a..b=3", ".a=1", "a.=1"])
def test_what_is_no_override(base, text):
    assert has(problems_of(load_run, base, [text]), "", text, "key=value, for example")


@pytest.mark.parametrize("value", ["[1", "{a: 1, a: 2}", "&a [*a]", "!!python/none", "\x00", "\udcff"])
def test_a_value_that_is_no_yaml(base, value):
    ((source, path, _, _),) = problems_of(load_run, base, ["seed=" + value])
    assert (source, path) == ("command line", "seed")


def test_an_override_leaves_what_it_was_given_alone():
    value = {"kind": "x", "list": [1]}
    draft = Draft({}, "file")
    draft.set("a.b", value, Origin("command line"))
    draft.set("a.b.list", [2], Origin("command line"))
    assert value == {"kind": "x", "list": [1]}


def test_places():
    draft = Draft({"a": {"kind": "x", "b": 1}, "c": 1}, "file")
    draft.set("a.kind", "y", Origin("arm", "arms.A."))
    draft.set("d.e.f", 1, Origin("grid", "grid.", ".2"))
    places = {"c": ("file", "c"), "a.b": ("arm", "arms.A.a.b"), "a.kind": ("arm", "arms.A.a.kind"),
              "d.e.f": ("grid", "grid.d.e.f.2"), "d.g": ("grid", "grid.d.2.g")}  # fmt: skip
    assert {path: draft.place(path) for path in places} == places
    draft.set("a", {"kind": "z"}, Origin("command line"))
    assert draft.place("a.kind") == ("command line", "a.kind")


class TestTextFiles:
    @pytest.fixture(autouse=True)
    def _files(self, write, tiny, tmp_path, monkeypatch):
        write("configs/text/one.txt", "one")
        write("here/two.txt", "two")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path / "here")
        self.write, self.tiny, self.root = write, tiny, tmp_path

    def corpus(self, corpus, *overrides):
        self.tiny["data"]["corpus"] = corpus
        return load_run(self.write("configs/a.yaml", self.tiny), overrides).data.corpus

    def test_start_at_the_file_that_gives_them(self):
        for text in ("text/one.txt", "./text/../text/one.txt", "~/configs/text/one.txt"):
            assert self.corpus({"kind": "text", "path": text}).path == str(self.root / "configs/text/one.txt")

    def test_start_here_on_the_command_line(self):
        assert self.corpus("stdlib", "data.corpus={kind: text, path: two.txt}").path == str(self.root / "here/two.txt")
        assert self.corpus({"kind": "text"}, "data.corpus.path=two.txt").path == str(self.root / "here/two.txt")

    def test_folders_and_globs(self):
        assert self.corpus({"kind": "text", "path": "text"}).path == str(self.root / "configs/text")
        assert self.corpus({"kind": "text", "path": "**/*.txt"}).path == str(self.root / "configs/**/*.txt")

    def test_each_split(self):
        corpus = self.corpus({"kind": "text", "train": "text/one.txt"}, "data.corpus.validation=two.txt")
        assert (corpus.train, corpus.validation) == (
            str(self.root / "configs/text/one.txt"),
            str(self.root / "here/two.txt"),
        )

    @pytest.mark.parametrize("text", ["text/onne.txt", "*.md", "a\0b", "x" * 5000, "no/such/folder", "~nobody/x"])
    def test_nothing_there(self, text):
        ((source, path, _, said),) = problems_of(self.corpus, {"kind": "text", "path": text})
        assert (source, path) == (str(self.root / "configs/a.yaml"), "data.corpus.path")
        assert "a file, folder or glob that exists; looked at" in said
        assert text != "text/onne.txt" or said.endswith("did you mean 'one.txt'?")

    @pytest.mark.parametrize(
        ("keys", "blamed"),
        [
            ((), "path"),
            (("path", "train"), "path"),
            (("train",), "validation"),
            (("validation",), "train"),
            (("test",), "train"),
        ],
    )
    def test_one_path_or_one_for_each_split(self, keys, blamed):
        problems = problems_of(self.corpus, {"kind": "text"} | dict.fromkeys(keys, "text"))
        assert f"data.corpus.{blamed}" in {path for _, path, _, _ in problems}

    def test_an_empty_path(self):
        assert has(
            problems_of(self.corpus, {"kind": "text", "path": ""}), "data.corpus.path", '""', "text that is not empty"
        )
