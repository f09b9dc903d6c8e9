"""The project's own corpora as TFDS builders. Import this module only where a corpus is prepared: TFDS is heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from wmresearch.data.documents import Pieces

RECORD_CHARACTERS = 1 << 20
"""Longer texts are written in several records: one record can not hold gigabytes."""


class _PiecesBuilder(tfds.core.GeneratorBasedBuilder):
    """Writes the pieces of each split, in their order.

    Its DatasetInfo is made here and not by `dataset_info_from_configs`, which wants a folder of its own in the package.
    """

    VERSION = tfds.core.Version("1.0.0")
    DESCRIPTION = ""

    def __init__(self, pieces: Pieces, **kwargs: Any) -> None:
        self._pieces = pieces
        super().__init__(file_format="array_record", **kwargs)

    def _info(self) -> Any:
        features = {"path": tfds.features.Text(), "text": tfds.features.Text()}
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,  # keys are numbers then, and records lie in their order
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        del dl_manager  # nothing to download
        return {name: self._generate_examples(pieces) for name, pieces in self._pieces.items()}

    def _generate_examples(self, pieces: Sequence[tuple[str, str]]) -> Iterator[tuple[int, dict[str, str]]]:
        size = RECORD_CHARACTERS
        parts = ((path, text[i : i + size]) for path, text in pieces for i in range(0, len(text), size))
        for index, (path, text) in enumerate(parts):
            yield index, {"path": path, "text": text}


class WmStdlib(_PiecesBuilder):
    DESCRIPTION = "The modules of a Python's standard library, as source text."


class WmText(_PiecesBuilder):
    DESCRIPTION = "A user's own text."
