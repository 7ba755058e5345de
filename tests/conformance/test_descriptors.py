"""Is our gRPC schema the one the real clients were built from?

Needs no server: compares the descriptors inside `tritonclient` with those of the crate `wire`, which its example `dump_descriptors` writes.
"""

import subprocess

import pytest
from google.protobuf import descriptor_pb2
from servers import DEVELOPMENT_BUILD, ROOT

DUMP = ROOT / "target" / "descriptors.bin"


def ours() -> descriptor_pb2.FileDescriptorSet:
    subprocess.run([DEVELOPMENT_BUILD / "examples" / "dump_descriptors"], cwd=ROOT, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(DUMP.read_bytes())


def theirs() -> descriptor_pb2.FileDescriptorSet:
    from tritonclient.grpc import model_config_pb2, service_pb2

    both = descriptor_pb2.FileDescriptorSet()
    for module in (service_pb2, model_config_pb2):
        module.DESCRIPTOR.CopyToProto(both.file.add())
    return both


def facts(schema: descriptor_pb2.FileDescriptorSet) -> dict[str, tuple]:
    """Everything that changes bytes or names, one entry per field, enum value and call."""
    found: dict[str, tuple] = {}

    def walk(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{message.name}"
        found[name] = ("message", message.options.map_entry)
        for field in message.field:
            choice = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
            found[f"{name}.{field.name}"] = (field.number, field.type, field.label, field.type_name, choice)
        for inner in message.nested_type:
            walk(name, inner)
        for values in message.enum_type:
            walk_enum(name, values)

    def walk_enum(prefix: str, values: descriptor_pb2.EnumDescriptorProto) -> None:
        for value in values.value:
            found[f"{prefix}.{values.name}.{value.name}"] = (value.number,)

    for file in schema.file:
        if file.package != "inference":
            continue
        for message in file.message_type:
            walk(file.package, message)
        for values in file.enum_type:
            walk_enum(file.package, values)
        for service in file.service:
            for call in service.method:
                kinds = (call.client_streaming, call.server_streaming)
                found[f"{service.name}/{call.name}"] = (call.input_type, call.output_type, *kinds)
    return found


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, tuple], dict[str, tuple]]:
    return facts(ours()), facts(theirs())


def test_what_both_schemas_have_is_the_same(both):
    mine, real = both
    assert {name: mine[name] for name in mine.keys() & real.keys()} == {
        name: real[name] for name in mine.keys() & real.keys()
    }


def test_our_schema_lacks_nothing(both):
    mine, real = both
    assert sorted(real.keys() - mine.keys()) == []


def test_our_schema_invents_nothing(both):
    mine, real = both
    assert sorted(mine.keys() - real.keys()) == []


def test_all_calls_are_there(both):
    mine, _ = both
    assert len([name for name in mine if name.startswith("GRPCInferenceService/")]) == 20
