"""Hints name the place that Delian was installed from."""

import json

import pytest
from delian.core.common import install_hint


class Recorded:
    def __init__(self, said):
        self.said = said

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.said is None else json.dumps(self.said)


@pytest.mark.parametrize(
    ("said", "command"),
    [
        (None, "pip install 'delian[sim]'"),
        (
            {"url": "https://host/delian.git", "vcs_info": {"vcs": "git"}},
            "pip install 'delian[sim] @ git+https://host/delian.git'",
        ),
        (
            {"url": "https://host/delian.whl", "archive_info": {}},
            "pip install 'delian[sim] @ https://host/delian.whl'",
        ),
        ({"url": "file:///gone/for/ever", "dir_info": {}}, "pip install '.[sim]'"),
    ],
)
def test_an_extra_is_from_where_delian_is_from(monkeypatch, tmp_path, said, command):
    monkeypatch.setattr(install_hint, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Recorded(said))
    install_hint._source.cache_clear()
    try:
        assert install_hint.install("sim") == command
    finally:
        install_hint._source.cache_clear()


def test_a_checkout_names_its_folder(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(install_hint, "__file__", str(tmp_path / "core" / "common" / "c.py"))
    install_hint._source.cache_clear()
    try:
        assert install_hint.install("sim", "torch") == f"pip install '{tmp_path}[sim,torch]'"
    finally:
        install_hint._source.cache_clear()
