"""Files that survive a crash at any byte."""

from __future__ import annotations

import stat

import pytest
from delian.core.node.identity.pki.certificates import IdentityError
from delian.core.node.identity.pki.ledger import FolderLock, Ledger, write_file


def read(path):
    entries = []
    Ledger(path).news(entries.clear, entries.append)
    return entries


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "some.jsonl")


def test_entries_come_back_in_order(ledger):
    for n in range(3):
        ledger.append({"n": n})
    assert read(ledger.path) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_a_torn_last_line_counts_for_nothing_and_the_next_entry_replaces_it(ledger):
    ledger.append({"n": 0})
    whole = ledger.path.read_bytes()
    mark = ledger.path.with_name("some.jsonl.mark")
    acknowledged = mark.read_bytes()
    for cut in range(1, len(whole)):
        ledger.path.write_bytes(whole + whole[:cut])
        mark.write_bytes(acknowledged)
        again = Ledger(ledger.path)
        seen = []
        again.news(seen.clear, seen.append)
        assert seen == [{"n": 0}]
        again.append({"n": 1})
        assert read(ledger.path) == [{"n": 0}, {"n": 1}]


def test_a_reader_follows_what_others_add_and_starts_again_in_a_new_file(ledger):
    other = Ledger(ledger.path)
    seen = []
    ledger.append({"n": 0})
    other.news(seen.clear, seen.append)
    ledger.append({"n": 1})
    other.news(seen.clear, seen.append)
    assert seen == [{"n": 0}, {"n": 1}]
    ledger.rewrite([{"n": 1}])
    other.news(seen.clear, seen.append)
    assert seen == [{"n": 1}]


@pytest.mark.parametrize("line", [b"{}x\n", b"[1]\n", b"\xff\n", b"[" * 5000 + b"\n"])
def test_a_damaged_line_is_told_and_not_skipped(ledger, line):
    ledger.path.write_bytes(line)
    with pytest.raises(IdentityError, match="is damaged at byte 0"):
        read(ledger.path)


def test_no_change_of_a_byte_and_no_cut_is_passed_over(ledger):
    for n in range(4):
        ledger.append({"n": n, "name": "device-5"})
    whole = ledger.path.read_bytes()
    for at in range(len(whole)):
        changed = bytes([whole[at] ^ 1 << at % 8])
        for content in (whole[:at] + changed + whole[at + 1 :], whole[:at]):
            ledger.path.write_bytes(content)
            with pytest.raises(IdentityError, match="is damaged") as caught:
                read(ledger.path)
            assert caught.value.hint
    lines = whole.splitlines(keepends=True)
    for left_out in range(4):
        ledger.path.write_bytes(b"".join(lines[:left_out] + lines[left_out + 1 :]))
        with pytest.raises(IdentityError, match="is damaged"):
            read(ledger.path)


def test_a_file_of_before_there_were_sums_is_read_and_gets_them(ledger):
    ledger.path.write_bytes(b'{"n":0}\n{"n":1}\n')
    ledger.news(list, lambda entry: None)
    ledger.append({"n": 2})
    whole = ledger.path.read_bytes()
    assert read(ledger.path) == [{"n": 0}, {"n": 1}, {"n": 2}]
    ledger.path.write_bytes(whole.replace(b'{"n":1}', b'{"n":3}'))
    with pytest.raises(IdentityError, match="is damaged"):
        read(ledger.path)
    ledger.path.write_bytes(whole + b'{"n":4}\n')
    with pytest.raises(IdentityError, match="is damaged"):
        read(ledger.path)


def test_a_mark_of_another_file_or_a_damaged_one_refuses_nothing(ledger, caplog):
    for n in range(4):
        ledger.append({"n": n})
    mark = ledger.path.with_name("some.jsonl.mark")
    before = mark.read_bytes()
    ledger.rewrite([{"n": 3}])
    mark.write_bytes(before)  # as a crash leaves it just after the file was replaced
    assert read(ledger.path) == [{"n": 3}]
    mark.write_bytes(before[:-1])
    assert read(ledger.path) == [{"n": 3}]
    assert "some.jsonl.mark is damaged" in caplog.text


def test_a_file_that_went_away_is_told(ledger):
    ledger.append({})
    ledger.path.unlink()
    with pytest.raises(IdentityError, match="has gone"):
        ledger.news(list, list)


def test_a_file_is_replaced_whole_with_its_mode(tmp_path):
    path = tmp_path / "key"
    write_file(path, b"one", 0o600)
    write_file(path, b"two", 0o600)
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["key"]
    with pytest.raises(IdentityError, match="cannot write"):
        write_file(tmp_path / "none" / "key", b"")


def test_a_lock_may_be_taken_twice_by_its_holder_and_not_at_all_in_a_folder_that_is_none(tmp_path):
    lock = FolderLock(tmp_path)
    with lock.held(), lock.held():
        pass
    with pytest.raises(IdentityError, match="cannot lock"), FolderLock(tmp_path / "none").held():
        pass
