"""Four layers, the later ones win, and nothing is taken that nobody knows."""

from __future__ import annotations

import json

import pytest
from delian.cli import config as c
from delian.cli.config import keys as every_key
from delian.cli.settings import Config
from delian.core.common.errors import DelianError


@pytest.fixture
def load(tmp_path):
    def call(text=None, environment=None, flags=None, settings=()):
        if text is not None:
            (tmp_path / "delian.toml").write_text(text)
        return c.load(None, flags, settings, environment or {}, tmp_path)

    return call


KEY = ("cloud", "listen")


def test_each_layer_wins_over_the_ones_before_and_is_named(load):
    text = '[cloud]\nlisten = "127.0.0.1:1001"\n'
    variable = {"DELIAN__CLOUD__LISTEN": "127.0.0.1:1002"}
    flags = {"cloud.listen": "127.0.0.1:1003"}
    loads = [
        (load(), "127.0.0.1:7443", "default"),
        (load(text), "127.0.0.1:1001", "file"),
        (load(text, variable), "127.0.0.1:1002", "environment"),
        (load(text, variable, flags), "127.0.0.1:1003", "flag"),
        (load(text, variable, flags, ["cloud.listen=127.0.0.1:1004"]), "127.0.0.1:1004", "flag"),
        (load(text, variable, {"cloud.listen": None}), "127.0.0.1:1002", "environment"),
    ]
    for loaded, value, kind in loads:
        assert loaded.config.cloud.listen == value
        assert loaded.origin(KEY).kind == kind
    assert str(loads[1][0].origin(KEY)).endswith("delian.toml:2")
    assert str(loads[2][0].origin(KEY)) == "DELIAN__CLOUD__LISTEN"
    assert str(loads[3][0].origin(KEY)) == "--listen"


def test_values_from_the_environment_are_read_by_their_kind(load):
    config = load(
        environment={
            "DELIAN__CLOUD__ADDRESSES": "a.example, b.example",
            "DELIAN__CLOUD__CERTIFICATE_DAYS": "7",
            "DELIAN__CLOUD__STORE": "5",
            "DELIAN__DEVICE__CONDITIONS__POWERED": "true",
            "DELIAN__DEVICE__CONDITIONS__LOAD_MAX": "0.25",
            "DELIAN__DEVICE__HOMES": '["edge-3@h:1", "h:2"]',
            "DELIAN__EDGE__NUMBER": "4",
            "DELIAN__EDGE__INSECURE": "true",
            "DELIAN__LOG__LEVEL": "debug",
        }
    ).config
    assert config.cloud.addresses == ("a.example", "b.example")
    assert (config.cloud.certificate_days, config.cloud.store) == (7, "5")
    assert config.device.conditions.powered is True
    assert config.device.conditions.load_max == 0.25
    assert config.device.homes == ("edge-3@h:1", "h:2")
    assert config.edge.number == 4 and config.log.level == "debug"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[cloud]\nlissten = "h:1"',
            ["delian.toml:2:1", "no key `cloud.lissten`", "`cloud.listen`"],
        ),
        ("[clout]\nlisten = 1", ["there is no key `clout`"]),
        ("[cloud]\ncertificate_days = 0", ["cannot be 0", "it must be at least 1"]),
        ("[cloud]\ncertificate_days = true", ["`cloud.certificate_days`"]),
        ('[cloud]\nlisten = "here"', ['`cloud.listen` cannot be "here"', "write host:port"]),
        ('[cloud]\nlisten = "::1:80"', ["brackets around IPv6"]),
        ('[log]\nlevel = "loud"', ['`log.level` cannot be "loud"', "'debug', 'info'"]),
        ('[cloud.broker]\nurl = "http://h"', ["write mqtts://host:port"]),
        ('[cloud.broker]\nurl = "mqtts://me:secret@h"', ["`cloud.broker.url`"]),
        ("[device.worker]\nnice = 20", ["it must be at most 19"]),
        ("[device.data]\nquery_fraction = nan", ["`device.data.query_fraction`"]),
        ("[cloud", ["delian.toml: ", "sections are [name]"]),
        (f"x = {'[' * 5000}{']' * 5000}", ["delian.toml: arrays in arrays, too deep", "no key"]),
        (f"[{'.'.join('a' * 3000)}]\nx = 1", ["delian.toml:1:2: a key of 3000 parts", "a few"]),
        ("[device.homes]\nx = 1", ["`device.homes`"]),
    ],
)
def test_mistakes_in_the_file_are_told_with_their_line(load, text, says):
    with pytest.raises(DelianError) as error:
        load(text)
    assert not [part for part in says if part not in str(error.value)], str(error.value)


@pytest.mark.parametrize(
    ("environment", "settings", "says"),
    [
        (
            {"DELIAN__CLOUD__LISTN": "h:1"},
            [],
            "DELIAN__CLOUD__LISTN: there is no key `cloud.listn`",
        ),
        ({"DELIAN__CLOUD": "x"}, [], "there is no key `cloud`"),
        ({"DELIAN__": "x"}, [], "there is no key"),
        ({"DELIAN__CLOUD__CERTIFICATE_DAYS": "many"}, [], "`cloud.certificate_days` cannot be"),
        ({}, ["cloud.listen"], "this is not key=value"),
        ({}, ["cloud.lissten=h:1"], "did you mean `cloud.listen`?"),
        ({}, ["=x"], "there is no key"),
    ],
)
def test_mistakes_elsewhere_are_told_with_their_name(load, environment, settings, says):
    with pytest.raises(DelianError) as error:
        load(environment=environment, settings=settings)
    assert says in str(error.value)


def test_several_mistakes_are_told_at_once(load):
    with pytest.raises(DelianError) as error:
        load('[cloud]\nlisten = "x"\nfoo = 1\n[log]\nlevel = "loud"')
    assert all(name in str(error.value) for name in ("cloud.listen", "cloud.foo", "log.level"))


@pytest.mark.parametrize(
    "text",
    [
        '[cloud]\ninsecure = true\nlisten = "0.0.0.0:7443"',
        '[edge]\ninsecure = true\nlisten = "10.0.0.1:7451"',
        '[operator]\ninsecure = true\ncoordinator = "c.example:7443"',
    ],
)
def test_without_tls_nothing_listens_to_other_machines(load, text):
    with pytest.raises(DelianError, match="without TLS it must be loopback"):
        load(text)


def test_a_number_is_only_for_who_has_no_certificate(load):
    with pytest.raises(DelianError, match="the certificate has the device's number"):
        load("[device]\nnumber = 3")
    assert load("[device]\nnumber = 3\ninsecure = true").config.device.number == 3


def test_a_secret_may_come_from_a_file(load, tmp_path):
    (tmp_path / "url").write_text("postgresql+asyncpg://me:secret@h/db\n")
    loaded = load(f'[cloud]\nstore_file = "{tmp_path / "url"}"')
    assert loaded.config.cloud.store == "postgresql+asyncpg://me:secret@h/db"
    assert "delian.toml:2" in str(loaded.origin(("cloud", "store")))
    by_variable = load("", {"DELIAN__CLOUD__STORE_FILE": str(tmp_path / "url")})
    assert by_variable.config.cloud.store == loaded.config.cloud.store
    with pytest.raises(DelianError, match=r"both `cloud\.store` and"):
        load(f'[cloud]\nstore = "x"\nstore_file = "{tmp_path / "url"}"')
    with pytest.raises(DelianError, match="cannot read"):
        load('[cloud]\nstore_file = "/nowhere"')


def test_consent_file_is_a_key_of_its_own(load):
    assert load('[device.conditions]\nconsent_file = "/c"').config.device.conditions.consent_file


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+asyncpg://me:pw@h:5/db", "postgresql+asyncpg://me:********@h:5/db"),
        ("postgresql://h/db?password=pw", "postgresql://h/db?********"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("", ""),
    ],
)
def test_passwords_in_urls_are_not_shown(url, shown):
    assert c.without_password(url) == shown


def test_the_command_shows_values_their_origins_and_no_secrets(delian, tmp_path, monkeypatch):
    (tmp_path / "delian.toml").write_text('[cloud]\nstore = "postgresql://me:hush@h/db"\n')
    monkeypatch.setenv("DELIAN__LOG__LEVEL", "debug")
    code, out, _ = delian("config", "show", "--origin", "--set", "edge.outbox_mib=7")
    assert code == 0 and "hush" not in out
    assert "# delian.toml:1" not in out and "# delian.toml:2" in out
    assert "log.level" in out and "# DELIAN__LOG__LEVEL" in out and "# --set edge.outbox_mib" in out
    code, found, _ = delian("config", "show", "cloud", "--origin", "--json")
    assert found["cloud.listen"] == {
        "value": "127.0.0.1:7443",
        "origin": "default",
        "from": "default",
    }
    assert "hush" not in json.dumps(found) and not any(k.startswith("edge") for k in found)
    assert delian("config", "show", "nothing")[0] == 2


def test_every_key_has_a_meaning_and_is_listed(delian):
    code, listed, _ = delian("config", "keys", "--json")
    assert code == 0 and all(entry["meaning"].endswith((".", ")")) for entry in listed)
    assert [entry["key"] for entry in listed] == [".".join(key) for key, _ in every_key()]
    assert delian("config", "keys")[1].count("\n[") == 16


def test_a_configuration_file_that_is_not_there_is_told(delian, tmp_path):
    code, _, err = delian("config", "show", "--config", "nowhere.toml")
    assert code == 2 and "there is no configuration file nowhere.toml" in err
    code, _, err = delian("config", "show", "--config", tmp_path)
    assert code == 2 and "is a folder" in err


def test_the_defaults_are_valid(tmp_path):
    assert Config.model_validate(Config().model_dump()) == Config()


def test_a_device_without_terms_or_settings_has_the_floor_of_the_protocol(tmp_path):
    from delian.cli.fleet.device_commands import floor_of
    from delian.core.privacy.secagg.client import Policy

    config = Config().device.model_copy(update={"state": tmp_path})
    assert floor_of(config) == Policy()


def test_a_device_asks_of_the_certificate_log_what_the_federation_s_terms_say(tmp_path):
    from delian.cli.fleet.device_commands import floor_of
    from delian.core.node.identity.authority.authority import Authority, issue_to
    from delian.core.node.identity.authority.founding import publish
    from delian.core.node.identity.authority.terms import published
    from delian.core.node.identity.pki.certificates import Role, TlsMaterial
    from delian.core.node.identity.pki.identity_folder import IdentityFolder
    from delian.core.privacy.secagg.logged import LogRules

    authority = Authority.create(tmp_path / "ca", "farm")
    key, issued = issue_to(authority, Role.DEVICE, 1)
    own = IdentityFolder(tmp_path / "identity")
    own.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=issued.renew_after_s)
    config = Config().device.model_copy(update={"state": tmp_path})

    def asked():
        own.take_terms(published(authority.folder), authority.pem, "farm")
        return floor_of(config).log

    assert asked() == LogRules(required=False)
    publish(authority, cohort_min=3, fresh=True)
    assert asked() == LogRules(required=True)


def test_a_device_goes_by_its_owner_s_cap_on_epsilon_and_by_the_federation_s(tmp_path):
    from delian.cli.fleet.device_commands import caps_of
    from delian.core.node.identity.authority.authority import Authority, issue_to
    from delian.core.node.identity.authority.founding import publish
    from delian.core.node.identity.authority.terms import published
    from delian.core.node.identity.pki.certificates import Role, TlsMaterial
    from delian.core.node.identity.pki.identity_folder import IdentityFolder
    from delian.device.protocol.releases import Cap

    authority = Authority.create(tmp_path / "ca", "farm")
    key, issued = issue_to(authority, Role.DEVICE, 1)
    own = IdentityFolder(tmp_path / "identity")
    own.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=issued.renew_after_s)
    free = Config().device.model_copy(update={"state": tmp_path})
    budget = free.budget.model_copy(update={"epsilon": 2.0, "delta": 1e-5})
    careful = free.model_copy(update={"budget": budget})

    publish(authority, cohort_min=3, fresh=True)
    own.take_terms(published(authority.folder), authority.pem, "farm")
    assert caps_of(free) == (Cap(),) and caps_of(careful) == (Cap(2.0, 1e-5),)
    publish(authority, epsilon=8.0)
    own.take_terms(published(authority.folder), authority.pem, "farm")
    assert caps_of(free) == (Cap(8.0, 1e-6),)
    assert caps_of(careful) == (Cap(2.0, 1e-5), Cap(8.0, 1e-6))
