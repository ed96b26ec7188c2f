"""Compiled code on disk: entries found by a digest of everything that determines them.

An entry is a header (magic, format, key, length, checksum of key and payload) and the payload, in a
file named by its key under one of 256 folders. It is written beside its place and moved there, so
that readers see all of it or nothing. What is truncated, altered, of another format or not ours to
trust counts as absent: the caller compiles again and overwrites it. A cache that cannot be read or
written costs time, never correctness; `XCUBE_LOG=cache` says what happened.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from xcube import config

LIMIT = 1 << 30
"""Bytes that a cache folder may hold; beyond, what was not used for longest is removed."""

_FORMAT = 1
_MAGIC = b"xcubeobj"
_HEADER = struct.Struct("<8sI16sQ16s")
_SUFFIX = ".bin"
_STORES_BETWEEN_LOOKS = 256
_DAY = 86_400
_HOUR = 3_600


def key(*parts: str) -> str:
    """The key of what is determined by `parts`, as 32 hexadecimal digits.

    >>> key("a", "b") == key("ab", "")
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def folder() -> Path:
    """The folder that the configuration names, or the one that the platform keeps for caches."""
    if config.current.cache:
        return Path(config.current.cache)
    return _user_folder(sys.platform)


def _user_folder(platform: str) -> Path:
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) / "xcube" / "Cache" if local else Path.home() / ".xcube"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "xcube"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xcube"


class Cache:
    """Entries under one folder, at most `limit` bytes of them."""

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.root = root
        self.limit = limit
        self._stores = itertools.count()
        self._names = itertools.count()

    @functools.cached_property
    def usable(self) -> bool:
        """Whether nobody else could have put code here; the folder is made if it is missing."""
        with self._survive("use"):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._is_trusted()
        return False

    def load(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None if there is none that can be trusted."""
        if not self.usable:
            return None
        try:
            with open(self._path(key), "rb") as file:
                data = file.read()
                self._mark_as_used(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log(f"cannot read {key}: {error}")
            return None
        payload = _unpack(key, data)
        if payload is None:
            self._log(f"ignored {key}: the entry is damaged or of another version")
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Keep `payload` under `key`, if the folder can be written."""
        if not self.usable:
            return
        path = self._path(key)
        draft = path.with_name(f"{key}.{os.getpid()}.{next(self._names)}.tmp")
        with self._survive("store"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                draft.write_bytes(_pack(key, payload))
                os.replace(draft, path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        if next(self._stores) % _STORES_BETWEEN_LOOKS == 0:
            self.evict()

    def evict(self) -> None:
        """Remove what was not used for longest until four fifths of the limit are left."""
        with self._survive("clean up"):
            entries = sorted(self._entries())
            size = sum(nbytes for _, nbytes, _ in entries)
            if size <= self.limit:
                return
            for _, nbytes, path in entries:
                if size <= self.limit * 4 // 5:
                    return
                os.unlink(path)
                size -= nbytes

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Time of last use, size and path of every entry; stale drafts are removed in passing."""
        with os.scandir(self.root) as shards:
            folders = [shard.path for shard in shards if shard.is_dir()]
        for place in folders:
            with os.scandir(place) as files:
                for file in files:
                    status = file.stat()
                    if file.name.endswith(_SUFFIX):
                        yield status.st_mtime, status.st_size, file.path
                    elif file.name.endswith(".tmp") and status.st_mtime < time.time() - _HOUR:
                        os.unlink(file.path)

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}{_SUFFIX}"

    def _mark_as_used(self, descriptor: int) -> None:
        """Renew the entry's time at most once a day, so that reading stays reading."""
        if os.utime not in os.supports_fd or time.time() - os.fstat(descriptor).st_mtime < _DAY:
            return
        with contextlib.suppress(OSError):
            os.utime(descriptor)

    def _is_trusted(self) -> bool:
        if not hasattr(os, "getuid"):
            return True
        status = self.root.stat()
        if status.st_uid not in (os.getuid(), 0):
            self._log(f"not used: it belongs to user {status.st_uid}, not {os.getuid()}")
            return False
        if status.st_mode & stat.S_IWOTH:
            self._log("not used: every user can write to it")
            return False
        return True

    @contextlib.contextmanager
    def _survive(self, action: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:
            self._log(f"cannot {action}: {error}")

    def _log(self, message: str) -> None:
        if "cache" in config.current.log:
            print(f"cache {self.root}: {message}", file=sys.stderr)


def _pack(key: str, payload: bytes) -> bytes:
    name = bytes.fromhex(key)
    return _HEADER.pack(_MAGIC, _FORMAT, name, len(payload), _checksum(name, payload)) + payload


def _unpack(key: str, data: bytes) -> bytes | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, name, length, checksum = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or version != _FORMAT or name != bytes.fromhex(key):
        return None
    if length != len(payload) or checksum != _checksum(name, payload):
        return None
    return payload


def _checksum(name: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16, key=name).digest()


@functools.lru_cache(maxsize=8)
def _at(root: str) -> Cache:
    return Cache(Path(root))


def current() -> Cache:
    """The cache of the configured folder."""
    return _at(os.fspath(folder()))
