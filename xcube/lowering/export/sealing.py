"""The envelope of an exported function: what it is, in which version of the format, and a checksum.
Nothing inside is looked at before these are right."""

from __future__ import annotations

import hashlib
import struct

from xcube.errors import ExportError

FORMAT = 1
"""The version that is written; older ones that can be read start at `OLDEST`."""
OLDEST = 1

_MAGIC = b"xcubefun"
_HEADER = struct.Struct("<8sIQ16s")


def sealed(payload: bytes, version: int = FORMAT) -> bytearray:
    """The payload in its envelope."""
    return bytearray(
        _HEADER.pack(_MAGIC, version, len(payload), _checksum(version, payload)) + payload
    )


def opened(data: bytes | bytearray | memoryview) -> bytes:
    """The payload of an envelope.

    Raises ExportError for what is no envelope, is of another version, or was altered or cut.
    """
    whole = bytes(data)
    if len(whole) < _HEADER.size or not whole.startswith(_MAGIC):
        raise ExportError(
            f"deserialize: the bytes must be what serialize made, which starts with {_MAGIC!r}; "
            f"got {len(whole)} bytes that start with {whole[: len(_MAGIC)]!r}."
        )
    _, version, length, checksum = _HEADER.unpack_from(whole)
    payload = whole[_HEADER.size :]
    if not OLDEST <= version <= FORMAT:
        raise ExportError(
            f"deserialize: the format must be of version {OLDEST}..{FORMAT}; got version "
            f"{version}. Use the xcube that wrote it, or a newer one."
        )
    if length != len(payload):
        raise ExportError(
            f"deserialize: {length} bytes must follow the header; got {len(payload)}. The data was "
            f"cut, or something was added."
        )
    if checksum != _checksum(version, payload):
        raise ExportError("deserialize: the checksum does not fit: the data was altered.")
    return payload


def _checksum(version: int, payload: bytes) -> bytes:
    return hashlib.blake2b(version.to_bytes(4, "little") + payload, digest_size=16).digest()
