"""Events over a pipe: incomplete ones wait, large ones arrive whole, and a missing reader does no harm."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipediag.host.channel import Event, Listener, Receiver, Sender, connected


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends; whatever the test has closed stays closed."""
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            pass


def test_events_arrive_in_order(pipe: tuple[int, int]) -> None:
    receiver, sender = Receiver(pipe[0]), Sender(pipe[1])
    assert list(receiver.events()) == []
    sender.send("a", {"path": Path("/x")})  # json does not know it: it is sent as text
    sender.send("b", {"text": "line\nbreak, ünïcode"})
    assert list(receiver.events()) == [("a", {"path": "/x"}), ("b", {"text": "line\nbreak, ünïcode"})]
    assert list(receiver.events()) == []


def test_half_a_line_waits(pipe: tuple[int, int]) -> None:
    """Also one that is cut inside a character."""
    receiver, line = Receiver(pipe[0]), '["b", {"x": "ü"}]\n'.encode()
    for cut in range(1, len(line)):
        os.write(pipe[1], b'["a", {}]\n' + line[:cut])
        assert list(receiver.events()) == [("a", {})]
        assert list(receiver.events()) == []
        os.write(pipe[1], line[cut:])
        assert list(receiver.events()) == [("b", {"x": "ü"})]


def test_what_is_no_event_is_left_out(pipe: tuple[int, int]) -> None:
    """Such as a long event into which a signal's handler has sent another."""
    receiver = Receiver(pipe[0])
    strange = [b'["a", {"x": ["b", {}]', b"1}]", b"\xff", b"[]", b'["a"]', b'["a", 1]', b"3", b"[1, {}]"]
    os.write(pipe[1], b"\n".join([*strange, b'["c", {}]\n']))
    assert list(receiver.events()) == [("c", {})]


def test_a_script_that_replaces_json(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dumps", "loads"):
        monkeypatch.setattr(json, name, lambda *args, **kwargs: b"not what json gives")
    receiver, sender = Receiver(pipe[0]), Sender(pipe[1])
    sender.send("a", {"x": 1})
    assert list(receiver.events()) == [("a", {"x": 1})]


def test_large_events_arrive_whole(pipe: tuple[int, int]) -> None:
    receiver, sender = Receiver(pipe[0]), Sender(pipe[1])
    text = "x" * 1_000_000
    thread = threading.Thread(target=lambda: [sender.send("big", {"n": n, "text": text}) for n in range(3)])
    thread.start()
    events: list[Event] = []
    while len(events) < 3:
        events += receiver.events()
    thread.join()
    assert events == [("big", {"n": n, "text": text}) for n in range(3)]


def test_what_was_sent_before_the_end_is_still_read(pipe: tuple[int, int]) -> None:
    receiver, sender = Receiver(pipe[0]), Sender(pipe[1])
    sender.send("last", {})
    os.close(pipe[1])
    assert list(receiver.events()) == [("last", {})]
    assert list(receiver.events()) == []


def test_reader_gone(pipe: tuple[int, int]) -> None:
    sender = Sender(pipe[1])
    os.close(pipe[0])
    sender.send("a", {})
    sender.send("b", {"x": "y" * 200_000})


def test_descriptor_closed_by_the_script(pipe: tuple[int, int]) -> None:
    sender = Sender(pipe[1])
    os.close(pipe[1])
    sender.send("a", {})


def test_descriptor_reused_by_the_script(pipe: tuple[int, int], tmp_path: Path) -> None:
    """A script that closes every descriptor may reuse ours for its own file, which must get no event."""
    sender = Sender(pipe[1])
    os.close(pipe[1])
    with open(tmp_path / "checkpoint", "wb") as file:
        os.dup2(file.fileno(), pipe[1])
        sender.send("window", {"rung": "raw"})
    assert (tmp_path / "checkpoint").read_bytes() == b""


def test_a_forked_copy_is_silent(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = Receiver(pipe[0]), Sender(pipe[1])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    sender.send("a", {})
    assert list(receiver.events()) == []


def test_descriptor_is_not_inherited(pipe: tuple[int, int]) -> None:
    os.set_inheritable(pipe[1], True)
    Sender(pipe[1])
    assert not os.get_inheritable(pipe[1])


def test_close(pipe: tuple[int, int]) -> None:
    Receiver(pipe[0]).close()
    with pytest.raises(OSError):
        os.fstat(pipe[0])


class TestSocket:
    """Processes beside the child connect by themselves."""

    @pytest.mark.parametrize("depth", [0, 12])
    def test_each_has_its_connection(self, tmp_path: Path, depth: int) -> None:
        """This also works in a folder whose name is too long for the address of a socket."""
        folder = tmp_path.joinpath(*["a-long-name"] * depth)
        folder.mkdir(parents=True, exist_ok=True)
        listener = Listener(str(folder / "members"))
        senders = [connected(str(folder / "members")) for _ in range(2)]
        receivers = list(listener.accepted())
        assert len(receivers) == 2
        for number, (sender, receiver) in enumerate(zip(senders, receivers, strict=True)):
            sender.send("a", {"number": number})
            assert list(receiver.events()) == [("a", {"number": number})] and not receiver.gone
            sender.close()
            assert list(receiver.events()) == [] and receiver.gone
            receiver.close()
        listener.close()
        assert list(folder.iterdir()) == []

    def test_nobody_listens(self, tmp_path: Path) -> None:
        connected(str(tmp_path / "nobody")).send("a", {})

    def test_a_script_that_closed_the_descriptor(self, tmp_path: Path) -> None:
        """The sender connects again, says whose events follow, and leaves the script's own file alone."""
        path = str(tmp_path / "members")
        listener, sender = Listener(path), connected(path)
        (first,) = listener.accepted()
        number = sender._fd
        with open(tmp_path / "checkpoint", "wb") as file:
            os.dup2(file.fileno(), number)
            sender.send("window", {"rung": "raw"})
        (second,) = listener.accepted()
        member = ("member", {"pid": os.getpid(), "rank": None})
        assert list(second.events()) == [member, ("window", {"rung": "raw"})]
        os.close(number)
        assert (tmp_path / "checkpoint").read_bytes() == b""
        assert list(first.events()) == [] and first.gone
        sender.close()
        sender.send("window", {"rung": "full"})
        assert list(listener.accepted()) == [] and list(second.events()) == []
        first.close()
        second.close()
        listener.close()

    def test_a_forked_process_holds_no_copy(self, tmp_path: Path) -> None:
        listener = Listener(str(tmp_path / "members"))
        sender = connected(str(tmp_path / "members"))
        (receiver,) = listener.accepted()
        wait, go = os.pipe()
        forked = os.fork()
        if not forked:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        sender.close()
        deadline = time.monotonic() + 5
        while not receiver.gone and time.monotonic() < deadline:
            assert list(receiver.events()) == []
        assert receiver.gone
        os.close(go)
        os.waitpid(forked, 0)
        os.close(wait)
        receiver.close()
        listener.close()
