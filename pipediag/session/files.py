"""Open files in places that others can write to; read a JSON file within bounds of time and memory."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from typing import Any

from ..errors import SessionFileError

#: Bounds of a file: bytes, values, and depth of nesting. A long session reaches a tenth of each.
MOST_BYTES, MOST_VALUES, DEEPEST = 16 << 20, 200_000, 40
#: pipediag measures no numbers with more digits.
_MOST_DIGITS = 18
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: str) -> Any:
    """Return the content of the JSON file at ``path``: every number is finite, all text can be written as UTF-8.

    Raises:
        SessionFileError: the file cannot be read, is no regular file, or is beyond the bounds; the message names it.
    """
    try:
        content = _content(path)
        data = json.loads(content.decode("utf-8-sig"), parse_int=_whole, parse_float=_finite, parse_constant=_finite)
        if _depth(data) > DEEPEST:
            raise RecursionError
    except OSError as error:
        raise SessionFileError(f"{path}: cannot be read ({error.strerror})") from None
    except SessionFileError as error:
        raise SessionFileError(f"{path}: {error}") from None
    except RecursionError:
        raise SessionFileError(f"{path}: not a file of pipediag's (it is nested too deep)") from None
    except ValueError as error:
        raise SessionFileError(f"{path}: not JSON ({error!s:.80})") from None
    return _writable(data) if _SURROGATE.search(content) else data


def opened_own(path: str, flags: int) -> int:
    """Open a regular file of this user, made with mode 0600 if ``flags`` make one. It waits for nobody.

    Raises:
        OSError: it cannot be opened, is another user's, or no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    facts = os.fstat(descriptor)
    if facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "it is another user's, or no regular file", path)


def _content(path: str) -> bytes:
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SessionFileError("cannot be read (it is not a regular file)")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SessionFileError(f"not a file of pipediag's (it is larger than {MOST_BYTES >> 20} MB)")
    if sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise SessionFileError(f"not a file of pipediag's (it holds more than {MOST_VALUES} values)")
    return content


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"the number {digits:.20}... is too large")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.20} is no number")
    return number


def _depth(data: Any) -> int:
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            value
            for one in level
            if isinstance(one, (dict, list))
            for value in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _writable(data: Any) -> Any:
    """Return the data with lone surrogates escaped: they stand for bytes of file names and cannot be written."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, list):
        return [_writable(value) for value in data]
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    return data
