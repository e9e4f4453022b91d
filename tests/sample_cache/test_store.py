"""What a store gives back is what was put into it, as long as the files it was made from have not changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pipediag.sample_cache.records import decode, encode
from pipediag.sample_cache.store import FileFacts, Store


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_what_is_put_is_returned_until_its_file_changes(where: str, tmp_path: Path) -> None:
    source = tmp_path / "image.jpg"
    source.write_bytes(b"one")
    store = Store.create(3, 1 << 24, None if where == "memory" else tmp_path, "key")
    value = torch.arange(30_000)
    assert store.get(2) is None
    assert store.put(2, encode((value, "label")), [FileFacts.of(source)])
    assert not store.put(2, encode("other"), [])
    entry = store.get(2)
    assert entry is not None
    image, label = decode(entry.head, entry.buffers, copy=False)
    assert torch.equal(image, value) and label == "label" and image.data_ptr() % 64 == 0
    os.utime(source, ns=(0, 0))
    assert store.get(2) is None and store.changed == 1 and store.entries == 0
    assert store.put(2, encode("other"), [FileFacts.of(source)]) and store.get(2) is not None
