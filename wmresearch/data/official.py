"""Official TFDS text builders, by name and feature. Import this module only to prepare or read: TFDS is heavy."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow_datasets as tfds

from wmresearch.config import ConfigError, Problem
from wmresearch.config.data import TfdsText
from wmresearch.config.problems import nearest
from wmresearch.data.cache import Report
from wmresearch.data.documents import SPLITS, Document, Pieces, cut, exact_shares, joined
from wmresearch.data.local_gfile import files_without_tensorflow

BUILDERS_WITH_TEXT = ("text", "text_simplification", "summarization", "question_answering", "translate")
RETRIES = 2
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0


def official_pieces(corpus: TfdsText, split: Sequence[float], report: Report) -> Pieces:
    """The data set's own train, validation and test; where it has no validation, a cut of its train text.

    The cut is by `split`; a data set with a test split of its own keeps it, and gives only the validation share.

    Raises:
        ConfigError: no such builder or feature, TensorFlow or another package is missing, or the data cannot be had.
    """
    texts = read_documents(_prepare(corpus, report), corpus.feature)
    own = {
        name: joined([Document(f"{name}/{index}", text, "") for index, text in enumerate(texts[name]) if text])
        for name in SPLITS
        if any(texts.get(name, ()))
    }
    if "train" not in own:
        _refuse(corpus, "a data set with text in a split named train", f"its splits: {', '.join(texts) or 'none'}")
    if "validation" in own:
        return own
    shares = exact_shares(split)
    if "test" in own:
        shares = (1 - shares[1], shares[1])
    parts = {**cut(own["train"], shares), **({"test": own["test"]} if "test" in own else {})}
    if not all(parts.values()):
        _refuse(corpus, f"more text: its train split, cut in {list(split)}, leaves a split empty", "")
    return parts


def _prepare(corpus: TfdsText, report: Report) -> Path:
    """The folder of the prepared data set; prepares it (which may download) where it is not."""
    if corpus.data_dir is not None:
        data_dir = Path(corpus.data_dir).expanduser().absolute()
    else:
        data_dir = Path(tfds.core.constants.get_default_data_dir()).expanduser().absolute()
    with quiet_tfds(), files_without_tensorflow(), _bounded_network():
        _check_name(corpus)
        try:
            for package in BUILDERS_WITH_TEXT:  # importing one makes its builders known
                importlib.import_module(f"tensorflow_datasets.{package}")
            builder = tfds.builder(corpus.name, data_dir=str(data_dir), file_format="array_record")
            _check_feature(builder, corpus)
            if not builder.is_prepared():
                report(f"preparing the data set {corpus.name} in {builder.data_dir}")
                config = tfds.download.DownloadConfig(try_download_gcs=False)
                builder.download_and_prepare(download_config=config)
        except tfds.core.DatasetNotFoundError:
            names = tfds.list_builders(with_community_datasets=False)
            close = nearest(corpus.name.partition("/")[0], names)
            hint = close if close.startswith("did") else f"TFDS knows {len(names)} names, none of them near"
            _refuse(corpus, "the name of a TFDS builder", hint)
        except ImportError as error:
            _refuse_for_import(corpus, error)
        except _failures() as error:
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            manual = f"without a network, lay the files that it downloads into {data_dir / 'downloads' / 'manual'}"
            hint = said[:300] if isinstance(error, ValueError) else f"{said[:300]}\n    {manual}"
            _refuse(corpus, "a data set that can be prepared here", hint)
    return Path(builder.data_dir)


def read_documents(folder: Path, feature: str) -> dict[str, list[str]]:
    """The texts in each split of the data set in `folder`, in its order."""
    with quiet_tfds():
        source = tfds.builder_from_directory(str(folder)).as_data_source()
        return {str(name): [_text(record[feature]) for record in records] for name, records in source.items()}


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Keeps TFDS from printing within the block: what matters comes as a report or an error."""
    loggers = [logging.getLogger(name) for name in ("absl", "urllib3")]
    levels = [logger.level for logger in loggers]
    tfds.disable_progress_bar()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        tfds.enable_progress_bar()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_name(corpus: TfdsText) -> None:
    try:
        name, _ = tfds.core.naming.parse_builder_name_kwargs(corpus.name)
    except ValueError:
        _refuse(corpus, "the name of a TFDS builder", "its form is name[/config][:version]")
    if name.namespace:  # such builders ask other services, each in its own way
        _refuse(corpus, "an official TFDS builder: a name without a namespace", "")


def _check_feature(builder: Any, corpus: TfdsText) -> None:
    features = builder.info.features
    texts = [name for name, feature in features.items() if isinstance(feature, tfds.features.Text)]
    if corpus.feature not in texts:
        hint = nearest(corpus.feature, texts) or f"{corpus.name} has no text feature"
        expected = f"a text feature of {corpus.name}"
        raise ConfigError([Problem("config", "data.corpus.feature", corpus.feature, expected, hint)])


def _refuse(corpus: TfdsText, expected: str, hint: str) -> NoReturn:
    raise ConfigError([Problem("config", "data.corpus.name", corpus.name, expected, hint)]) from None


def _refuse_for_import(corpus: TfdsText, error: ImportError) -> NoReturn:
    # TFDS wraps errors, and a wrapped one has lost the module's name
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    module = next((link.name for link in chain if isinstance(link, ImportError) and link.name), None) or str(error)
    if "tensorflow" in module.lower():
        _refuse(corpus, "TensorFlow, which this builder needs", "pip install 'wmresearch[tensorflow]'")
    _refuse(corpus, f"the package {module}, which this builder needs", f"pip install {module}")


def _failures() -> tuple[type[Exception], ...]:
    """What a builder raises when its data cannot be had; anything else is a bug, and keeps its traceback."""
    from tensorflow_datasets.core.download import download_manager, util

    return OSError, AssertionError, ValueError, util.DownloadError, download_manager.NonMatchingChecksumError


@contextlib.contextmanager
def _bounded_network() -> Iterator[None]:
    """Ends attempts at a network that does not answer: TFDS itself has no timeout, and tries 11 times."""
    from tensorflow_datasets.core.download import downloader

    retries, open_url, timeout = downloader.MAX_RETRIES, downloader._open_url, socket.getdefaulttimeout()
    downloader.MAX_RETRIES = RETRIES
    downloader._open_url = functools.partial(open_url, timeout=(CONNECT_SECONDS, READ_SECONDS))
    socket.setdefaulttimeout(READ_SECONDS)  # for ftp
    try:
        yield
    finally:
        downloader.MAX_RETRIES, downloader._open_url = retries, open_url
        socket.setdefaulttimeout(timeout)
