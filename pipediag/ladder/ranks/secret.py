"""Hand a job's secret to its ranks, and to nobody else on their host."""

from __future__ import annotations

import os
import re
from hmac import digest

from ...session.codec import opened_own

#: Environment variable with a text that all ranks on several hosts know and nobody else does, if the user gives one.
OWN = "PIPEDIAG_SECRET"
_BYTES = 32
_SECRET = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")
#: Where the ranks of one host find the secret: a file without a name that rank 0 holds open, for its own user alone.
_OPEN_FILE = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")


def new_secret(one_host: bool) -> tuple[bytes, str]:
    """Return a secret, and what to tell the other ranks: where they can read it, or the secret itself.

    Args:
        one_host: True if all ranks run on this host, and so can read a file that this process holds open.
    """
    secret = os.urandom(_BYTES)
    if not one_host or not hasattr(os, "memfd_create"):
        return _of_several_hosts(secret), secret.hex()
    file = os.memfd_create("pipediag")  # open as long as this process lives
    os.write(file, secret)
    return secret, f"/proc/{os.getpid()}/fd/{file}"


def read_secret(told: str) -> bytes:
    """Return the secret that rank 0 told this rank of.

    Raises:
        ValueError: it is none.
        OSError: it cannot be read, or another user holds the file.
    """
    if _SECRET.fullmatch(told):
        return _of_several_hosts(bytes.fromhex(told))
    if not _OPEN_FILE.fullmatch(told):
        raise ValueError("no secret")
    file = opened_own(told, os.O_RDONLY)
    try:
        secret = os.pread(file, _BYTES + 1, 0)
    finally:
        os.close(file)
    if len(secret) != _BYTES:
        raise ValueError("no secret")
    return secret


def _of_several_hosts(told: bytes) -> bytes:
    """Return the secret of what the ranks are told in a place that others may read."""
    own = os.environ.get(OWN, "")
    return digest(own.encode("utf-8", "surrogateescape"), told, "sha256") if own else told
