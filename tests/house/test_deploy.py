"""What lies under deploy/ fits the commands and the configuration as they are."""

import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from delian.cli import config
from delian.cli.main import app
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", sorted((DEPLOY / "config").glob("*.toml")), ids=lambda p: p.stem)
def test_every_sample_configuration_is_one(path):
    loaded = config.load(path, environment={})
    assert path.stem.removeprefix("issuing-") in loaded.config.model_fields_set


def services():
    import yaml

    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return compose["services"]


@pytest.mark.parametrize("name", ["cloud", "edge-1", "edge-2"])
def test_a_service_of_the_compose_file_reads_its_configuration(name, tmp_path):
    service = services()[name]
    group, command, option, file = service["command"]
    assert option in {
        o for p in get_command(app).commands[group].commands[command].params for o in p.opts
    }
    source = next(v.split(":")[0] for v in service["volumes"] if v.split(":")[1] == file)
    environment = {
        key: re.sub(r"\$\{DELIAN_HOST[^}]*\}", "fleet.example.org", value)
        for key, value in service["environment"].items()
    }
    section = getattr(config.load(DEPLOY / source, environment=environment).config, group)
    assert section.public.startswith("fleet.example.org:")
    port = section.public.split(":")[1]
    assert any(p.split(":")[0] == port for p in service["ports"])
    assert (
        section.listen.split(":")[1]
        == {p.split(":")[0]: p.split(":")[1] for p in service["ports"]}[port]
    )


def test_what_the_compose_file_mounts_is_there_or_made_by_setup():
    made = (DEPLOY / "setup").read_text()
    ignored = (ROOT / ".gitignore").read_text()
    for name, service in services().items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if not source.startswith("./"):
                continue
            if (DEPLOY / source).exists() and "secrets" not in source:
                continue
            assert source[2:] in made and "/deploy/secrets/" in ignored, f"{name}: {source}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "deploy/setup HOST"),
        (["a b"], "HOST is"),
        (["host; id"], "HOST is"),
        (["host", "$(id)"], "FEDERATION is"),
        (["host", "farm", "few"], "COHORT_MIN is"),
    ],
)
def test_setup_refuses_what_is_no_name(arguments, says):
    done = subprocess.run(
        ["bash", DEPLOY / "setup", *arguments],
        env={"COMPOSE": "false", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and says in done.stderr and not done.stdout


def test_every_command_of_setup_is_one():
    lines = re.findall(
        r"delian ((?:ca|broker|token|join)[^&|'\"<>]*)", (DEPLOY / "setup").read_text()
    )
    assert len(lines) == 6
    for line in lines:
        command, words = get_command(app), line.split()
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {name for p in command.params for name in p.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_every_unit_starts_a_command_that_there_is(path):
    (line,) = re.findall(r"^ExecStart=\S+ (.*)$", path.read_text(), re.MULTILINE)
    group, command, option, file = line.split()
    commands = get_command(app).commands[group].commands
    assert option in {name for p in commands[command].params for name in p.opts}
    assert file == f"/etc/delian/{group}.toml"


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_systemd_takes_every_unit(path, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    # The program it starts is not installed here; everything else is checked.
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/delian/bin/delian", "/bin/true"))
    result = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and not result.stderr, result.stderr


# ---------------------------------------------------------------- what is installed

#: A package, its version, and the SHA-256 of each of its files.
PIN = re.compile(
    r"^([a-z0-9-]+)==([^ ;]+)(?: ; .*)? \\$((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$",
    re.MULTILINE,
)


def pins(name):
    """name -> versions, of a lock file in which every entry has a version and hashes."""
    text = (ROOT / "deploy" / name).read_text()
    found, starts = {}, re.findall(r"^\S.*$", text, re.MULTILINE)
    for entry in PIN.finditer(text):
        found.setdefault(entry[1], []).append(entry[2])
    assert sum(map(len, found.values())) == len(starts), "an entry without a version or a hash"
    return found


def test_the_lock_file_pins_every_dependency_of_the_image_within_its_bounds():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    extras = re.findall(r"--extra ([a-z0-9]+)", (ROOT / "deploy" / "lock").read_text())
    assert extras and image.count("--require-hashes") == 2 and "--no-build-isolation" in image
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    locked = pins("requirements.txt")
    for requirement in map(Requirement, wanted):
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not pinned: run deploy/lock"
        inside = all(requirement.specifier.contains(version) for version in versions)
        assert inside, f"{requirement} is pinned elsewhere: run deploy/lock"
    assert set(pins("requirements-build.txt")) == {"setuptools"}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_lock_files_name_no_host(name):
    text = (ROOT / "deploy" / name).read_text()
    assert "://" not in text and "--index-url" not in text and "--find-links" not in text


@pytest.mark.parametrize(
    ("report", "complaint", "code", "words"),
    [
        ("", "requests.exceptions.ConnectionError: ...", 3, "not checked: service unreachable"),
        ("", "Traceback: something else", 2, "pip-audit failed"),
        ('{"dependencies": []}', "", 3, "not checked: 0 of 0"),
        ('{"dependencies": [{"name": "a", "skip_reason": "?"}]}', "", 3, "not checked: 1 of 1"),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', "", 0, "1 packages"),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1",'
            ' "fix_versions": ["2"]}]}, {"name": "b", "skip_reason": "?"}]}',
            "",
            1,
            "a 1: CVE-1, fixed in 2",
        ),
    ],
)
def test_what_was_not_asked_about_is_not_called_free_of_vulnerabilities(
    report, complaint, code, words
):
    names = runpy.run_path(str(ROOT / ".ci" / "vulnerabilities"))
    found, lines = names["judge"](report, complaint)
    assert found == code and words in "\n".join(lines)
