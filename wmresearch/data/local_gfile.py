"""What TFDS's text builders use of TensorFlow, where it is not installed: files on local disks, and no more.

Most official text builders use TensorFlow for `tf.io.gfile` alone. With these few functions they prepare without it;
one that asks for anything else gets the ImportError that it would have got.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class _Gfile:
    """The part of `tf.io.gfile` that makes sense on a local disk."""

    exists = staticmethod(os.path.exists)
    isdir = staticmethod(os.path.isdir)
    listdir = staticmethod(os.listdir)
    walk = staticmethod(os.walk)

    @staticmethod
    def GFile(name: os.PathLike[str] | str, mode: str = "r") -> IO[Any]:  # noqa: N802 (its name in TensorFlow)
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}  # like gfile: line ends stay as they are
        return Path(name).open(mode, **text)  # type: ignore[call-overload]

    @staticmethod
    def glob(pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))  # noqa: PTH207 (absolute patterns)

    @staticmethod
    def makedirs(path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def copy(source: str, target: str, overwrite: bool = False) -> None:
        if not overwrite and Path(target).exists():
            raise FileExistsError(target)
        shutil.copyfile(source, target)


class _Namespace:
    def __init__(self, **names: Any) -> None:
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError(f"TensorFlow is needed (for {name}) and not installed", name="tensorflow")


def _as_text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def files_without_tensorflow() -> Iterator[None]:
    """Lets TFDS's lazy TensorFlow module stand for local files within the block, if TensorFlow is not installed."""
    from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as lazy

    if importlib.util.find_spec("tensorflow") is not None:
        yield
        return
    # TFDS's modules all hold one lazy module, which keeps what it found under "_module" once it has been asked
    held = vars(lazy)
    held["_module"] = _Namespace(io=_Namespace(gfile=_Gfile), compat=_Namespace(as_text=_as_text))
    try:
        yield
    finally:
        held.pop("_module", None)
