"""Keep a store's keys and values unreadable and unforgeable to everybody without the job's secret.

torch's store serves whoever can connect to it: it lists its keys, and takes new values for them. Here, keys are hashed
and values are encrypted and signed with the secret, so that a stranger can neither read nor steer the measurement.
"""

from __future__ import annotations

import hashlib
import os
import re
from hmac import compare_digest
from typing import Protocol

from ...session.files import opened_own

_BYTES = 16
_SECRET = re.compile(r"[0-9a-f]{64}")
#: Where the ranks of one host find the secret: a file without a name that rank 0 holds open, for its own user alone.
_OPEN_FILE = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that is used."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...


class SealedStore:
    """A store for those who know the secret."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store, self._secret = store, secret

    def set(self, key: str, value: str) -> None:
        name, nonce = self._name(key), os.urandom(_BYTES)
        hidden = nonce + self._crypt(nonce, value.encode())
        self._store.set(name, (self._hash(b"seal", name.encode() + hidden) + hidden).hex())

    def get(self, key: str) -> bytes:
        """Return the value of a key.

        Raises:
            ValueError: somebody without the secret has written it.
        """
        name = self._name(key)
        sealed = bytes.fromhex(self._store.get(name).decode("ascii"))
        hidden = sealed[_BYTES:]
        if not compare_digest(sealed[:_BYTES], self._hash(b"seal", name.encode() + hidden)):
            raise ValueError("the seal is broken")
        return self._crypt(hidden[:_BYTES], hidden[_BYTES:])

    def check(self, keys: list[str]) -> bool:
        return self._store.check([self._name(key) for key in keys])

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._name(key), amount)

    def _name(self, key: str) -> str:
        return self._hash(b"name", key.encode()).hex()

    def _hash(self, purpose: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._secret, person=purpose, digest_size=_BYTES).digest()

    def _crypt(self, nonce: bytes, data: bytes) -> bytes:
        """Encrypt or decrypt."""
        stream = hashlib.shake_256(self._hash(b"stream", nonce) + self._secret).digest(len(data))
        return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def new_secret(one_host: bool) -> tuple[bytes, str]:
    """Return a secret, and what to tell the other ranks: where they can read it, or the secret itself.

    Args:
        one_host: True if all ranks run on this host, and so can read a file that this process holds open.
    """
    secret = os.urandom(32)
    if not one_host or not hasattr(os, "memfd_create"):
        return secret, secret.hex()
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
        return bytes.fromhex(told)
    if not _OPEN_FILE.fullmatch(told):
        raise ValueError("no secret")
    file = opened_own(told, os.O_RDONLY)
    try:
        secret = os.pread(file, 33, 0)
    finally:
        os.close(file)
    if len(secret) != 32:
        raise ValueError("no secret")
    return secret
