"""`delian new`: what it writes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path


def test_a_folder_with_files_is_left_alone(tmp_path, delian):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notes").write_text("mine")
    code, _, err = delian("new", "here")
    assert code == 2 and "delian new here-2" in err
    assert [each.name for each in (tmp_path / "here").iterdir()] == ["notes"]
    code, out, _ = delian("new", "here-2", "--json")
    assert code == 0 and out["template"] == "tabular" and len(out["files"]) == 4
    assert all(Path(file).is_file() for file in out["files"])
    assert delian("new", "--", "-x")[0] == 2
