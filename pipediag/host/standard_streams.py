"""Keep standard streams from ending an analysis if they are closed, on a full disk, or no longer read."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def open_closed() -> None:
    """Open the streams that were closed when this process began; the next file opened would get their output."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


def put(text: str, stream: TextIO) -> OSError | None:
    """Write text at once. If that fails, return the error and let the stream discard everything from then on.

    Otherwise Python would try again when it ends, and fail.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    except ValueError:  # it was closed
        pass
    return None


@contextmanager
def output_beside() -> Iterator[None]:
    """Send what is printed within the context to standard error, also by child processes."""
    sys.stdout.flush()
    try:
        own = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def tell(text: str) -> None:
    """Write one line to the script's standard error; do nothing if the script has closed it.

    A file that the script opens then gets its number. Such a file is not inherited by programs, and the stream is. Jobs
    often replace ``print``, to hear one rank alone.
    """
    with suppress(Exception):  # the script may have put anything in the stream's place
        if os.get_inheritable(2):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def flush() -> None:
    """Write what the script has printed, if whatever it has put in its streams' place can do that."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


class _Untroubled(io.FileIO):
    """A file that discards what it cannot write."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def keep_printing() -> None:
    """Let the script print on after its reader has left: a rung would be blamed for the error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
            continue
        stream.flush()
        raw = _Untroubled(stream.fileno(), "wb", closefd=False)
        raw.name = stream.name
        lasting = io.TextIOWrapper(
            raw if stream.write_through else io.BufferedWriter(raw),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        lasting.mode = stream.mode  # type: ignore[misc]
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)
