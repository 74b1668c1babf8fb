"""The generated protobuf modules are what `proto/` gives."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from support import wire_modules


def test_every_proto_file_has_its_module_and_none_is_left_over():
    sources = {path.stem for path in wire_modules.PROTO.glob("*.proto")}
    modules = {path.name.removesuffix("_pb2.py") for path in wire_modules.WIRE.glob("*_pb2.py")}
    assert modules == sources


def test_the_modules_say_what_the_files_say(tmp_path: Path):
    """Compared as descriptors, so that another version of the compiler does not matter."""
    pytest.importorskip("grpc_tools")
    out = tmp_path / "all.pb"
    wire_modules.protoc([f"--descriptor_set_out={out}"])
    for fresh in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        module = importlib.import_module(
            fresh.name.removesuffix(".proto").replace("/", ".") + "_pb2"
        )
        kept = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        fresh.ClearField("source_code_info")
        for message in (fresh, kept):
            _drop_json_names(message.message_type)
        assert kept == fresh, f"{fresh.name}: run python tests/support/wire_modules.py"


def _drop_json_names(messages):
    """protoc writes them into descriptor sets and not into modules."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)
