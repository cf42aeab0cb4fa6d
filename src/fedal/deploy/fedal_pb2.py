"""The messages of fedal.proto, made from its compiled form, fedal.binpb.

Generated code is bound to one or two major versions of protobuf. This is all that it would do, by functions that every
version from 4.22 on has. fedal_pb2.pyi tells type checkers what comes out; __init__.py says how both files are made.
"""

from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_raw = files("fedal.deploy").joinpath("fedal.binpb").read_bytes()
(_file,) = descriptor_pb2.FileDescriptorSet.FromString(_raw).file
_pool = descriptor_pool.Default()
_pool.AddSerializedFile(_file.SerializeToString())
for _name, _class in message_factory.GetMessageClassesForFiles([_file.name], _pool).items():
    globals()[_name.removeprefix(f"{_file.package}.")] = _class
