"""What a table was made from: how many runs, of which code, on what, and what is missing or odd about them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import shorten
from typing import Any

import wmresearch
from wmresearch.reports.records import Record, row_key

_LONGEST = 10
"""Lines of one kind in the notes, after which only their number is said."""


def environment(records: Sequence[Record]) -> dict[str, set[str]]:
    """Kind of thing → the different ones that made the runs. More than one of a kind: compare with care."""
    found: dict[str, set[str]] = {"commits": set(), "Python versions": set(), "packages": set(), "devices": set()}
    found["XLA flags"] = set()
    for record in records:
        if (made := record.manifest) is None:
            continue
        if made.commit is not None:
            found["commits"].add(made.commit + (" with uncommitted changes" if made.dirty else ""))
        if made.python is not None:
            found["Python versions"].add(made.python)
        if made.packages is not None:
            found["packages"].add(json.dumps(made.packages, sort_keys=True))
        if made.device is not None:
            found["devices"].add(_text(made.device))
        found["XLA flags"].add(made.xla_flags or "")
    return found


def table_manifest(records: Sequence[Record], ignored: Sequence[str], family: int) -> dict[str, Any]:
    """Everything a reader needs to find the runs again and to judge them; plain data.

    The environment is that of the finished runs, which alone are in the means.
    """
    finished = [record for record in records if record.finished]
    made = [record.manifest for record in finished if record.manifest]
    found = environment(finished)
    packages: dict[str, set[str]] = {}
    for manifest in made:
        for name, version in (manifest.packages or {}).items():
            packages.setdefault(name, set()).add(version)
    states = Counter(record.state for record in records)
    corpora = {_text(manifest.corpus) for manifest in made if manifest.corpus is not None}
    digests = {digest for record in records for digest in record.digests}
    content: dict[str, Any] = {
        "wm_version": wmresearch.__version__,
        "runs": {
            "planned": len(records),
            "finished": states["finished"],
            "diverged": states["diverged"],
            "failed": states["failed"],
        },
        "comparisons": family,
        "corpus": sorted(corpora),
        "corpus_digest": min(digests, default=None),
        "commits": sorted({manifest.commit for manifest in made if manifest.commit}),
        "dirty": any(manifest.dirty for manifest in made) if made else None,
        "python": sorted(found["Python versions"]),
        "packages": {name: sorted(versions) for name, versions in sorted(packages.items())},
        "devices": sorted(found["devices"]),
        "xla_flags": sorted(found["XLA flags"] - {""}),
        "notes": list(_notes(records, finished, packages, found, ignored)),
    }
    return {"id": _id(content, records), **content}


def _id(content: dict[str, Any], records: Sequence[Record]) -> str:
    """Twelve hexadecimal digits of SHA-256 over the manifest and the runs that it is of."""
    runs = [(record.planned.run_id, record.state) for record in records]
    return hashlib.sha256(json.dumps([content, runs], sort_keys=True).encode()).hexdigest()[:12]


def _notes(
    records: Sequence[Record],
    finished: Sequence[Record],
    packages: dict[str, set[str]],
    found: dict[str, set[str]],
    ignored: Sequence[str],
) -> Iterator[str]:
    yield from _shortened(list(_not_finished(records)), "more rows with runs that are not finished: see `wm status`")
    for kind in ("commits", "Python versions", "devices", "XLA flags"):
        if len(found[kind]) > 1:
            names = ", ".join(_short(name) or "none" for name in sorted(found[kind]))
            yield f"Mixed {kind}: {names}. Compare with care."
    mixed = [f"{name} {' and '.join(sorted(versions))}" for name, versions in packages.items() if len(versions) > 1]
    if mixed:
        names = ", ".join(mixed[:_LONGEST]) + ", …" * (len(mixed) > _LONGEST)
        yield f"Mixed package versions: {names}. Compare with care."
    if any(record.manifest and record.manifest.dirty for record in finished):
        yield "Some runs were made from code with uncommitted changes, which the commit does not tell."
    unknown = [r.planned.run_id for r in finished if r.manifest is None or r.manifest.commit is None]
    if unknown:
        yield f"Code unknown (no usable manifest, or no commit in it) for {_runs(unknown)}."
    if no_digest := [record.planned.run_id for record in finished if not record.digests]:
        yield f"Corpus unknown (no digest) for {_runs(no_digest)}."
    if ignored:
        yield f"Not in the plan, ignored: {_runs(ignored)}."
    renamed = {
        f"'{r.planned.arm}' were made as '{r.summary.arm}'"
        for r in finished
        if r.summary and r.summary.arm is not None and r.summary.arm != r.planned.arm
    }
    for text in sorted(renamed):
        yield f"Runs of {text}."


def _not_finished(records: Sequence[Record]) -> Iterator[str]:
    """A line for each row: which seeds are not in its means, and why."""
    for _, group in groupby(records, key=lambda record: row_key(record.planned)):
        missing = [record for record in group if not record.finished]
        if not missing:
            continue
        planned = missing[0].planned
        setting = "".join(f", {key} = {_text(value)}" for key, value in planned.settings.items())
        why: dict[str, list[str]] = {}
        for record in missing:
            reason = f"{record.state} ({shorten(record.reason, 120)})" if record.reason else record.state
            why.setdefault(reason, []).append(str(record.planned.seed))
        parts = [f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} {reason}" for reason, seeds in why.items()]
        yield f"Not counted of {planned.arm}{setting}: {'; '.join(parts)}."


def _shortened(lines: list[str], rest: str) -> Iterator[str]:
    yield from lines[:_LONGEST]
    if len(lines) > _LONGEST:
        yield f"… and {len(lines) - _LONGEST} {rest}."


def _runs(ids: Sequence[str]) -> str:
    return f"{len(ids)} run{'s' * (len(ids) > 1)} ({', '.join(ids[:3])}{', …' * (len(ids) > 3)})"


def _short(name: str) -> str:
    """A commit's hash cut to twelve digits; other names as they are."""
    first, space, rest = name.partition(" ")
    return (first[:12] if len(first) == 40 else first) + space + rest


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
