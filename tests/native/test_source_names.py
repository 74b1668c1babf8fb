"""Where a file lies is no part of what is made of it."""

from __future__ import annotations

from pathlib import Path

import delian
import numpy as np
import pytest
from delian.core.common import source_names
from delian.core.common.errors import ProgramError
from delian.core.common.user_code import load_function
from delian.core.compiler.frontend.tracing import trace
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.learning.nn import Dense

PACKAGE = Path(delian.__file__).parent
MODEL = """
import numpy as np

def twice(x):
    return np.tanh(x) * 2
"""
BROKEN = """
def twice(x):
    return open(x)
"""


def file_in(folder, text=MODEL):
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(text)
    return folder / "model.py"


def traced(file):
    return trace(load_function(file, "twice"), TensorType(DType.F32, (3,))).function


def test_a_file_by_itself_is_named_without_its_folder(tmp_path):
    assert source_names.name_of(str(file_in(tmp_path / "any where"))) == "model.py"


def test_a_package_s_file_is_named_as_an_import_would(tmp_path):
    file = file_in(tmp_path / "home" / "nets" / "deep")
    for folder in (file.parent, file.parent.parent):
        (folder / "__init__.py").touch()
    assert source_names.name_of(str(file)) == "nets/deep/model.py"


def test_delian_s_own_are_named_from_the_package_whatever_its_folder_is_called():
    file = str(PACKAGE / "core" / "learning" / "nn" / "layers.py")
    name = source_names.name_of(file)
    assert name == "delian/core/learning/nn/layers.py"
    assert source_names.path_of(name) == file


@pytest.mark.parametrize("name", ["model.py", "<stdin>", "delian/no/such.py", "delian/../x.py"])
def test_other_names_stay_as_they_are(name):
    assert source_names.name_of(name) == source_names.path_of(name) == name


def test_a_program_is_the_same_bytes_from_two_copies_of_its_file(tmp_path):
    files = [file_in(tmp_path / "one"), file_in(tmp_path / "two" / "deeper")]
    programs = [traced(file) for file in files]
    assert programs[0].body.ops[0].locs[0].file == str(files[0]), "in memory it is a path"
    one, two = map(encode_function, programs)
    assert one == two and str(tmp_path).encode() not in one
    assert encode_function(decode_function(one)) == one


def test_an_error_still_shows_the_line_of_the_file_it_is_in(tmp_path):
    file = file_in(tmp_path / "one", BROKEN)
    with pytest.raises(ProgramError) as caught:
        traced(file)
    assert f"{file}:3" in str(caught.value) and "return open(x)" in str(caught.value)


def test_a_decoded_line_of_delian_is_found_again():
    layer = Dense(np.ones((3, 2), np.float32), np.ones(2, np.float32))
    program = trace(layer, TensorType(DType.F32, (4, 3))).function
    again = decode_function(encode_function(program))
    files = {loc.file for op in again.body.ops for loc in op.locs}
    assert str(PACKAGE / "core" / "learning" / "nn" / "layers.py") in files
