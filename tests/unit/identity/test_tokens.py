"""Tokens: good once, for one role, for a while; and a lost reply costs none."""

from __future__ import annotations

import base64
import threading
import zlib

import pytest
from delian.core.node.identity.authority.tokens import TokenBook, TokenError, parse, split_address
from delian.core.node.identity.pki.certificates import IdentityError, Role, new_key, public_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

CA = public_bytes(new_key().public_key())


@pytest.fixture
def book(tmp_path):
    return TokenBook(tmp_path / "ca")


def make(book, role=Role.DEVICE, **options):
    return book.create(role, "farm", "coordinator.example:7401", CA, **options)[0]


def test_the_text_says_all_that_join_needs(book):
    token = make(book)
    text = token.text()
    assert parse(text) == token and text.startswith("delian1.") and len(text) < 250
    assert parse(f" {text[:40]}\n  {text[40:]} \n") == token
    assert token.authority_key().public_numbers() and token.address == "coordinator.example:7401"


def test_the_secret_is_neither_in_the_book_nor_in_the_repr(book, tmp_path):
    token = make(book)
    stored = (tmp_path / "ca" / "tokens.jsonl").read_text()
    assert token.secret.hex() not in stored and token.text() not in stored
    assert repr(token.secret) not in repr(token)
    assert (tmp_path / "ca" / "tokens.jsonl").stat().st_mode & 0o777 == 0o600


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_mistyped_token_is_refused(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        text = make(TokenBook(Path(folder))).text()
    place = data.draw(st.integers(8, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCabc019-_ \n!é"))
    if letter == text[place]:
        return
    damaged = text[:place] + letter + text[place + 1 :]
    try:
        # The last letter has bits that mean nothing.
        assert parse(damaged) == parse(text) and place == len(text) - 1
    except IdentityError as error:
        assert error.hint


@pytest.mark.parametrize("text", ["", "delian1.", "delian1.AAAA", "x" * 2000, "delian2.AAAA", "é"])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(IdentityError, match="token"):
        parse(text)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300), st.binary(max_size=200))
def test_noise_is_never_a_token(text, body):
    import base64

    for shown in (text, "delian1." + text, "delian1." + base64.urlsafe_b64encode(body).decode()):
        with pytest.raises(IdentityError):
            parse(shown)


def test_a_token_is_good_once(book):
    token = make(book)
    assert book.redeem(token, Role.DEVICE, b"key").number is None
    with pytest.raises(TokenError, match="was used before"):
        book.redeem(token, Role.DEVICE, b"another key")


def test_the_same_key_may_ask_again_and_is_the_same_node(book):
    token = make(book)
    first = book.redeem(token, Role.DEVICE, b"key")
    book.bind(first.id, b"key", 17)
    assert book.redeem(token, Role.DEVICE, b"key").number == 17


def test_a_token_of_several_uses_lets_in_so_many(book):
    token = make(book, uses=3)
    for n in range(3):
        book.redeem(token, Role.DEVICE, b"key %d" % n)
    with pytest.raises(TokenError, match="was used before"):
        book.redeem(token, Role.DEVICE, b"one too many")


def test_uses_and_numbers_survive_a_restart_and_are_seen_by_other_processes(book, tmp_path):
    token = make(book)
    beside = TokenBook(tmp_path / "ca")
    beside.redeem(token, Role.DEVICE, b"key")
    with pytest.raises(TokenError, match="was used before"):
        book.redeem(token, Role.DEVICE, b"another key")
    beside.bind(token.id, b"key", 4)
    again = TokenBook(tmp_path / "ca")
    assert again.redeem(token, Role.DEVICE, b"key").number == 4


def test_an_expired_token_lets_nobody_in_not_even_its_own_key(book):
    token = make(book, valid_s=60, now_s=1_000_000)
    book.redeem(token, Role.DEVICE, b"key", now_s=1_000_059)
    with pytest.raises(TokenError, match="has expired"):
        book.redeem(token, Role.DEVICE, b"key", now_s=1_000_060)


def test_a_token_is_for_one_role(book):
    token = make(book, role=Role.EDGE)
    with pytest.raises(TokenError, match="for a node of the role edge"):
        book.redeem(token, Role.DEVICE, b"key")
    for role in (Role.AUTHORITY, Role.OPERATOR, Role.NOBODY):
        with pytest.raises(IdentityError, match="no token lets in"):
            make(book, role=role)


def test_a_wrong_secret_is_as_unknown_as_a_wrong_id(book):
    import dataclasses

    token = make(book)
    wrong = dataclasses.replace(token, secret=bytes(32))
    unknown = dataclasses.replace(token, id=bytes(8))
    for forged in (wrong, unknown):
        with pytest.raises(TokenError, match="there is no such token"):
            book.redeem(forged, Role.DEVICE, b"key")
    assert book.redeem(token, Role.DEVICE, b"key").number is None, "a guess uses nothing up"


def test_two_at_once_cannot_both_use_it(book, tmp_path):
    token = make(book)
    books = [TokenBook(tmp_path / "ca") for _ in range(4)]
    won = []

    def use(n):
        try:
            books[n].redeem(token, Role.DEVICE, b"key %d" % n)
            won.append(n)
        except TokenError:
            pass

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_expired_tokens_leave_the_book(book, tmp_path):
    for _ in range(5):
        make(book, valid_s=1, now_s=1_000_000)
    live = make(book)
    book.redeem(live, Role.DEVICE, b"key")
    book.bind(live.id, b"key", 3)
    opened = TokenBook(tmp_path / "ca")
    stored = (tmp_path / "ca" / "tokens.jsonl").read_text()
    assert stored.count('"hash"') == 1
    assert opened.redeem(live, Role.DEVICE, b"key").number == 3
    assert book.redeem(live, Role.DEVICE, b"key").number == 3


def test_open_tokens_are_listed_without_their_secrets(book):
    token = make(book, uses=2)
    make(book, valid_s=1, now_s=1_000_000)
    book.redeem(token, Role.DEVICE, b"key")
    (listed,) = book.open_tokens()
    assert listed["id"] == token.id.hex() and listed["uses_left"] == 1
    assert set(listed) == {"id", "role", "expires", "site", "uses_left"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid_s": 0}, "cannot be good for 0 s"),
        ({"valid_s": 40 * 86400}, "cannot be good"),
        ({"uses": 0}, "cannot have 0 uses"),
        ({"uses": 10**6}, "uses"),
        ({"addresses": ["a"]}, "a device's certificate carries"),
        ({"role": Role.EDGE, "addresses": ["a b"]}, "neither a host name"),
    ],
)
def test_limits_of_a_token(book, options, message):
    with pytest.raises(IdentityError, match=message):
        make(book, **options)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "h:99999", "::1:80", "h:x"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(IdentityError):
        split_address(address)


def test_addresses_in_ipv6_have_brackets():
    assert split_address("[::1]:7401") == ("[::1]", 7401)


def test_a_token_of_an_issuing_authority_names_its_key_and_the_root_s(book):
    issuer = new_key().public_key()
    token = make(book, issuer=public_bytes(issuer), site="north")
    assert parse(token.text()) == token
    assert token.server_key() == issuer and token.authority == CA
    assert public_bytes(token.authority_key()) == CA
    of_root = make(book)
    assert of_root.issuer == b"" and of_root.server_key() == of_root.authority_key()


def test_a_token_of_an_issuing_authority_that_was_cut_is_no_token_of_the_root(book):
    """The versions differ, so that no byte of one is read as another field of the other."""
    token = make(book, issuer=public_bytes(new_key().public_key()))
    assert not {v.text()[8:10] for v in (token, make(book))} - {"AQ", "Ag"}
    body = bytearray(
        base64.urlsafe_b64decode(token.text()[8:] + "=="[: -len(token.text()[8:]) % 4])
    )
    body[0] = 1  # as if it were of the root
    body[-4:] = zlib.crc32(bytes(body[:-4])).to_bytes(4, "big")
    text = "delian1." + base64.urlsafe_b64encode(bytes(body)).rstrip(b"=").decode()
    with pytest.raises(IdentityError):
        parse(text)
