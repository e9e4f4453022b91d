"""Count the files that Python opens for reading while a sample is made."""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...clock import time
from ...patches import replaced
from ...session import Files

#: Number of file extensions that are reported.
_ENDINGS = 4
#: Number of paths that are kept.
_KEPT = 32


class OpenedFiles:
    """A counter of files opened while :meth:`watched`. Files that libraries open outside Python are not seen."""

    def __init__(self) -> None:
        self.seconds = 0.0  # spent on counting
        self.cpu = 0.0  # CPU seconds among them
        self._sizes: list[int] = []
        self._endings: Counter[str] = Counter()
        self._paths: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Replace ``open`` in ``builtins`` and ``io`` within the context."""

        def noting(native: Any) -> Any:
            def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
                opened = native(file, mode, *args, **kwargs)
                if "r" in mode and "+" not in mode and isinstance(file, (str, bytes, os.PathLike)):
                    self._note(os.fsdecode(file), opened)
                return opened

            return open

        with replaced(builtins, "open", noting(builtins.open)), replaced(io, "open", noting(io.open)):
            yield

    def _note(self, path: str, opened: Any) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        with suppress(OSError, AttributeError):  # not a file of the operating system
            self._sizes.append(os.fstat(opened.fileno()).st_size)
            self._endings[os.path.splitext(path)[1].lower()] += 1
            if len(self._paths) < _KEPT:
                self._paths.append(os.path.abspath(path))
        self.seconds += time.perf_counter() - began
        self.cpu += time.thread_time() - cpu

    def with_endings(self, endings: tuple[str, ...]) -> list[str]:
        """Return the first opened files with one of these endings."""
        return [path for path in self._paths if path.lower().endswith(endings)]

    def figures(self, samples: int) -> Files:
        count = len(self._sizes)
        return Files(
            opened=round(count / samples, 4),
            nbytes=round(sum(self._sizes) / count, 1) if count else 0.0,
            endings=dict(self._endings.most_common(_ENDINGS)),
        )
