"""Exchange frames with another rank of the job; whoever does not know the job's secret gets none, and is not heard.

Both ends first send a random number. From the two numbers and the secret each derives a key for either direction. Every
frame carries an HMAC-SHA256, under the key of its direction, of its place in the sequence and its content. So a frame
cannot be forged, changed, repeated, left out, moved, or sent back to where it came from. The content is not encrypted.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from hmac import compare_digest, digest

from ...session.codec import opened_own

_NONCE = 32
#: Before a frame's content: its length and its HMAC.
_HEAD = struct.Struct(">I32s")
#: Maximum bytes of a frame, and of the first one to rank 0: that of somebody who has proven nothing yet.
_MOST, _MOST_UNPROVEN = 16 << 20, 256
#: Bytes that are read at a time, and seconds until an end that takes nothing in counts as gone.
_CHUNK, _SECONDS = 1 << 16, 2
#: The kernel gives up a connection whose other end does not answer for some seconds. Seconds of silence until it asks,
#: seconds between two questions, and milliseconds until it gives up.
_IDLE, _INTERVAL, _UNANSWERED = 2, 1, 6000
_CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)


class Connection:
    """One end of a connection.

    Args:
        leads: True at rank 0's end.

    Attributes:
        proven: True once the other end has sent a frame with the job's secret.

    Raises:
        OSError: the connection has broken.
    """

    def __init__(self, connected: socket.socket, secret: bytes, leads: bool) -> None:
        self._socket, self._secret, self._leads = connected, secret, leads
        self._nonce = os.urandom(_NONCE)
        self._keys: tuple[bytes, bytes] | None = None  # to send, and to receive
        self._sent = self._taken = 0
        self._queue: list[bytes] = []  # until the other end's number is known
        self._arrived = bytearray()
        self.proven = False
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SECONDS, 0))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            for option, value in (
                (socket.TCP_KEEPIDLE, _IDLE),
                (socket.TCP_KEEPINTVL, _INTERVAL),
                (socket.TCP_USER_TIMEOUT, _UNANSWERED),
            ):
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        connected.sendall(self._nonce)

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_cut(self) -> bool:
        """Return whether the kernel has given the connection up; True only once."""
        with suppress(OSError):  # it is closed
            return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _CUT
        return False

    def send(self, content: bytes) -> None:
        """Send a frame, as soon as the other end has sent its random number.

        Raises:
            OSError: the other end is gone, or takes nothing in.
        """
        if self._keys is None:
            self._queue.append(content)
            return
        tag = _tag(self._keys[0], self._sent, content)
        self._sent += 1
        self._socket.sendall(_HEAD.pack(len(content), tag) + content)

    def received(self) -> Iterator[bytes]:
        """Yield the frames that have arrived.

        Raises:
            OSError: there will be no more; the other end is gone, or does not know the secret.
        """
        ended = self._read()
        if self._keys is None and len(self._arrived) >= _NONCE:
            self._agree(self._take(_NONCE))
        while self._keys is not None and len(self._arrived) >= _HEAD.size:
            size, tag = _HEAD.unpack_from(self._arrived)
            if size > (_MOST_UNPROVEN if self._leads and not self.proven else _MOST):
                raise ConnectionAbortedError("a frame is too long")
            if len(self._arrived) < _HEAD.size + size:
                break
            content = self._take(_HEAD.size + size)[_HEAD.size :]
            if not compare_digest(tag, _tag(self._keys[1], self._taken, content)):
                raise ConnectionAbortedError("a frame is not of this job")
            self._taken += 1
            self.proven = True
            yield content
        if ended:
            raise ConnectionResetError("the other end is closed")

    def _read(self) -> bool:
        """Read what is there, of somebody who has proven nothing a part; return whether there will be no more."""
        try:
            while chunk := self._socket.recv(_CHUNK, socket.MSG_DONTWAIT):
                self._arrived += chunk
                if len(chunk) < _CHUNK or not self.proven:
                    return False
        except BlockingIOError:
            return False
        return True

    def _take(self, count: int) -> bytes:
        taken = bytes(self._arrived[:count])
        del self._arrived[:count]
        return taken

    def _agree(self, theirs: bytes) -> None:
        """Derive the keys from both random numbers, and send what has waited for them."""
        numbers = self._nonce + theirs if self._leads else theirs + self._nonce
        from_0, to_0 = (digest(self._secret, way + numbers, "sha256") for way in (b"from rank 0", b"to rank 0"))
        self._keys = (from_0, to_0) if self._leads else (to_0, from_0)
        queue, self._queue = self._queue, []
        for content in queue:
            self.send(content)

    def close(self) -> None:
        with suppress(OSError):  # the other end may have closed it
            self._socket.shutdown(socket.SHUT_RDWR)  # forked workers may hold copies
        self._socket.close()


def is_cut(error: OSError | None) -> bool:
    """Return whether an error says that the other host does not answer."""
    return error is not None and error.errno in _CUT


def _tag(key: bytes, number: int, content: bytes) -> bytes:
    return digest(key, number.to_bytes(8, "big") + content, "sha256")


#: Environment variable with a text that all ranks on several hosts know and nobody else does, if the user gives one.
OWN = "PIPEDIAG_SECRET"
_BYTES = 32
_HEX_SECRET = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")
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
    if _HEX_SECRET.fullmatch(told):
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
