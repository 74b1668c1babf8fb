"""A blob in messages."""

from __future__ import annotations

import hashlib

import pytest
from delian.core.node.net import blob_upload


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 0), (1, 1), (blob_upload.PART_BYTES, 1), (blob_upload.PART_BYTES + 1, 2)],
)
def test_a_blob_is_named_and_then_brought_in_order(size, count):
    content = bytes(i % 251 for i in range(size))
    ref, parts = blob_upload.parts_of(content)
    first, *others = parts
    assert first.blob == ref and (ref.size, ref.digest) == (size, hashlib.sha256(content).digest())
    assert len(others) == count and all(len(p.content) <= blob_upload.PART_BYTES for p in others)
    assert b"".join(p.content for p in others) == content
