"""What a table says of where its runs come from."""

import pytest


def test_the_manifest_says_what_the_table_was_made_from(sweep):
    folder = sweep()
    folder.fill()
    made = folder.table()["manifest"]
    assert made["runs"] == {"planned": 6, "finished": 6, "diverged": 0, "failed": 0}
    assert made["corpus"] == ["stdlib/small"]
    assert made["commits"] == ["0123456789abcdef0123456789abcdef01234567"]
    assert made["packages"] == {"flax": ["0.12.8"], "jax": ["0.10.2"], "numpy": ["2.4.6"]}
    assert (made["python"], made["devices"], made["dirty"], made["xla_flags"]) == (["3.11.7"], ["cpu"], False, [])
    assert made["notes"] == []


@pytest.mark.parametrize(
    ("change", "flag", "said"),
    [
        ({"commit": "f" * 40}, "mixed commits", "Mixed commits: 0123456789ab, ffffffffffff."),
        ({"dirty": True}, "mixed commits", "0123456789ab with uncommitted changes"),
        ({"packages": {"jax": "0.12.0", "flax": "0.12.8"}}, "mixed packages", "jax 0.10.2 and 0.12.0"),
        ({"python": "3.13.0"}, "mixed Python versions", "3.11.7, 3.13.0"),
        ({"device": {"kind": "H200"}}, "mixed devices", 'cpu, {"kind": "H200"}'),
        ({"xla_flags": "--xla_x=1"}, "mixed XLA flags", "none, --xla_x=1"),
    ],
)
def test_mixed_environments_are_flagged_where_they_matter(sweep, change, flag, said):
    folder = sweep(arms=("W_o", "mixed", "clean"))
    folder.fill({"W_o": folder.BASE, "mixed": folder.RANK, "clean": folder.RANK})
    folder.run("mixed", 1, folder.RANK[1], manifest=change)
    base, mixed, clean = folder.table()["rows"]
    assert base["flags"] == clean["flags"] == []
    assert mixed["flags"] == [flag]
    assert said in folder.notes()


def test_an_unknown_origin_is_said(sweep):
    folder = sweep()
    folder.fill(corpus_digest=None, manifest={"commit": None, "dirty": None, "packages": None, "corpus_digest": None})
    (folder.run("W_o", 1, folder.BASE[1]) / "manifest.json").unlink()
    table = folder.table()
    assert "Code unknown (no usable manifest, or no commit in it) for 6 runs" in folder.notes()
    assert "Corpus unknown (no digest) for 5 runs" in folder.notes()
    assert table["rows"][0]["flags"] == []


def test_a_manifest_of_another_run_is_not_believed(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_o", 1, folder.BASE[1], manifest={"run_id": "ffffffffffff", "commit": "f" * 40, "corpus_digest": "x"})
    assert "Code unknown (no usable manifest, or no commit in it) for 1 run (000000000001)." in folder.notes()
