"""The disk cache returns what was stored or nothing, whatever happened to the files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from xcube import config
from xcube.lowering import cache
from xcube.lowering.cache import Cache

KEY = cache.key("kernel", "target")
PAYLOAD = bytes(range(256)) * 5


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def entry(store: Cache, key: str = KEY) -> Path:
    (path,) = store.root.rglob(f"{key}.bin")
    return path


def test_a_stored_payload_comes_back(store: Cache):
    assert store.load(KEY) is None
    store.store(KEY, PAYLOAD)
    assert store.load(KEY) == PAYLOAD
    assert Cache(store.root).load(KEY) == PAYLOAD


def test_an_empty_payload_is_a_payload(store: Cache):
    store.store(KEY, b"")
    assert store.load(KEY) == b""


def test_keys_separate_their_parts():
    keys = {cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("abc", "")}
    assert len(keys) == 4


@pytest.mark.parametrize("length", [0, 1, 30, 51, 52, 100, 51 + len(PAYLOAD)])
def test_a_truncated_entry_is_absent_and_can_be_rewritten(store: Cache, length: int):
    store.store(KEY, PAYLOAD)
    path = entry(store)
    data = path.read_bytes()
    assert length < len(data)
    path.write_bytes(data[:length])
    assert store.load(KEY) is None
    store.store(KEY, PAYLOAD)
    assert store.load(KEY) == PAYLOAD


def test_every_flipped_bit_is_noticed(store: Cache):
    store.store(KEY, PAYLOAD[:40])
    path = entry(store)
    data = bytearray(path.read_bytes())
    for place in range(len(data)):
        data[place] ^= 1 << (place % 8)
        path.write_bytes(data)
        assert store.load(KEY) is None, place
        data[place] ^= 1 << (place % 8)
    path.write_bytes(data)
    assert store.load(KEY) == PAYLOAD[:40]


def test_appended_bytes_are_noticed(store: Cache):
    store.store(KEY, PAYLOAD)
    with open(entry(store), "ab") as file:
        file.write(b"more")
    assert store.load(KEY) is None


def test_an_entry_under_another_key_is_not_taken(store: Cache):
    store.store(KEY, PAYLOAD)
    other = cache.key("other kernel", "target")
    store.store(other, b"other")
    os.replace(entry(store), entry(store, other))
    assert store.load(other) is None


def test_another_version_is_not_taken(store: Cache, monkeypatch: pytest.MonkeyPatch):
    store.store(KEY, PAYLOAD)
    monkeypatch.setattr(cache, "_FORMAT", cache._FORMAT + 1)
    assert store.load(KEY) is None


def test_a_folder_in_the_place_of_an_entry_is_survived(store: Cache):
    store.store(KEY, PAYLOAD)
    path = entry(store)
    path.unlink()
    path.mkdir()
    assert store.load(KEY) is None
    store.store(KEY, PAYLOAD)


def test_a_file_in_the_place_of_the_folder_is_survived(tmp_path: Path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    store = Cache(place)
    store.store(KEY, PAYLOAD)
    assert store.load(KEY) is None


def test_a_failing_disk_is_survived_and_logged(
    store: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with config.using(log=frozenset({"cache"})):
        store.store(KEY, PAYLOAD)
    assert store.load(KEY) is None
    assert "No space left on device" in capsys.readouterr().err
    assert not list(store.root.rglob("*.tmp"))


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_survived(store: Cache):
    store.store(KEY, PAYLOAD)
    shard = entry(store).parent
    shard.chmod(0o500)
    try:
        store.store(KEY, b"new")
        assert store.load(KEY) == PAYLOAD
    finally:
        shard.chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_a_folder_that_everybody_can_write_to_is_not_used(tmp_path: Path):
    Cache(tmp_path / "open").store(KEY, PAYLOAD)
    (tmp_path / "open").chmod(0o777)
    store = Cache(tmp_path / "open")
    assert store.load(KEY) is None
    assert not store.usable


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path):
    Cache(tmp_path / "theirs").store(KEY, PAYLOAD)
    os.chown(tmp_path / "theirs", 12345, 12345)
    assert Cache(tmp_path / "theirs").load(KEY) is None


def test_what_was_unused_for_longest_goes_first(tmp_path: Path):
    store = Cache(tmp_path / "small", limit=10_000)
    keys = [cache.key(str(number)) for number in range(12)]
    for age, key in enumerate(keys):
        store.store(key, bytes(1_000))
        os.utime(entry(store, key), (time.time() - 1_000 * age,) * 2)
    store.evict()
    kept = [key for key in keys if store.load(key) is not None]
    assert kept == keys[: len(kept)]
    assert 0 < len(kept) * 1_000 <= 8_000


def test_loading_counts_as_use(store: Cache):
    store.store(KEY, PAYLOAD)
    long_ago = time.time() - 10 * 86_400
    os.utime(entry(store), (long_ago, long_ago))
    store.load(KEY)
    assert entry(store).stat().st_mtime > time.time() - 60


def test_old_drafts_are_removed_and_young_ones_left(store: Cache):
    store.store(KEY, PAYLOAD)
    old, young = (entry(store).with_name(f"{KEY}.{number}.tmp") for number in (1, 2))
    for draft in (old, young):
        draft.write_bytes(b"half")
    os.utime(old, (time.time() - 10_000,) * 2)
    store.evict()
    assert not old.exists()
    assert young.exists()


def test_the_configuration_names_the_folder(tmp_path: Path):
    with config.using(cache=str(tmp_path / "here")):
        assert cache.current().root == tmp_path / "here"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}, "/xdg/xcube"),
        ("linux", {"HOME": "/home/me"}, "/home/me/.cache/xcube"),
        ("darwin", {"HOME": "/home/me"}, "/home/me/Library/Caches/xcube"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/xcube/Cache"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="states POSIX paths")
def test_the_platform_names_the_folder(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache._user_folder(platform) == Path(expected)
