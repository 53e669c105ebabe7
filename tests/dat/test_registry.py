"""dat.conf and the registry. Source: docs/reference/dat.md 16."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.dat.fakes import FakeAdapter
from urds import dat
from urds.dat import registry
from urds.dat.records import ProviderInfo
from urds.dat.registry import (
    ConfError,
    Provider,
    Registry,
    Support,
    parse_conf,
    parse_params,
    split_fields,
)
from urds.dat.returns import Subtype
from urds.verbs.engine.numbers import ReceiveOrder

LINE = 'soft0-1 u1.2 nonthreadsafe default libdapl.so dapl.1.2 "soft0 1" ""'


@pytest.fixture(autouse=True)
def no_file_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the environment nor /etc decides what these tests see."""
    monkeypatch.delenv("DAT_OVERRIDE", raising=False)
    monkeypatch.setattr(registry, "SYSTEM_FILE", tmp_path / "nothing")


# -- the file


def test_a_line_has_eight_fields() -> None:
    (entry,) = parse_conf(f"# a comment\n\n{LINE}   # and another\n")
    assert entry.info == ProviderInfo("soft0-1", 1, 2, False)
    assert (entry.is_user_level, entry.is_default) == (True, True)
    assert (entry.library, entry.provider_version) == ("libdapl.so", "dapl.1.2")
    assert (entry.ia_params, entry.platform_params) == ("soft0 1", "")


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", []),
        ("   # only a comment", []),
        ("a b\tc", ["a", "b", "c"]),
        (r'"a b" "" c', ["a b", "", "c"]),
        (r'"say \"x\" and \\" b', ['say "x" and \\', "b"]),
        ('a "# no comment" b', ["a", "# no comment", "b"]),
        ("a b#c", ["a", "b#c"]),
    ],
)
def test_how_fields_are_split(line: str, fields: list[str]) -> None:
    assert split_fields(line) == fields


@pytest.mark.parametrize(
    "line",
    [
        'a "open',
        '"a"b c',
        "one two three",
        LINE + " ninth",
        LINE.replace("u1.2", "x1.2"),
        LINE.replace("u1.2", "u1"),
        LINE.replace("nonthreadsafe", "maybe"),
        LINE.replace(" default", " often"),
        LINE.replace("soft0-1", "n" * 256),
    ],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(ConfError, match="line 2"):
        parse_conf(f"# first\n{line}\n")


@pytest.mark.parametrize(
    ("text", "device", "address", "support"),
    [
        ("shm0", "shm0", None, Support()),
        ("udp0 10.0.0.7", "udp0", "10.0.0.7", Support()),
        ("shm0 127.0.0.1 ep_recv_info=0x01", "shm0", "127.0.0.1", Support(ep_recv_info=1)),
        ("shm0 srq_watermarks=0 srq_info=16", "shm0", None, Support(srq_watermarks=0, srq_info=16)),
        (
            "shm0 receive_order=fill_gaps",
            "shm0",
            None,
            Support(receive_order=ReceiveOrder.FILL_GAPS),
        ),
    ],
)
def test_parameters_of_an_adapter(
    text: str, device: str, address: str | None, support: Support
) -> None:
    assert parse_params(text) == (device, address, support)


@pytest.mark.parametrize(
    "text", ["", "a b c", "shm0 speed=9", "shm0 srq_info=x", "receive_order=x"]
)
def test_parameters_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"parameter|invalid literal"):
        parse_params(text)


# -- looking up


def info_of(name: str, *, major: int = 1, minor: int = 2, is_safe: bool = True) -> ProviderInfo:
    return ProviderInfo(name, major, minor, is_safe)


@pytest.mark.parametrize(
    ("name", "major", "minor", "is_safe", "subtype"),
    [
        ("other", 1, 2, True, Subtype.NAME_NOT_REGISTERED),
        ("card", 2, 0, True, Subtype.MAJOR_NOT_FOUND),
        ("card", 1, 3, True, Subtype.MINOR_NOT_FOUND),
        ("card", 1, 2, False, Subtype.THREAD_SAFETY_NOT_FOUND),
        ("card", 1, 2, True, None),
        ("card", 1, 1, True, None),
    ],
)
def test_the_most_specific_reason(
    name: str, major: int, minor: int, is_safe: bool, subtype: Subtype | None
) -> None:
    found, provider = Registry(), Provider(FakeAdapter)
    found.add(provider, info_of("card"))
    found.add(Provider(FakeAdapter), info_of("card", major=3, is_safe=False))
    if subtype is None:
        assert found.find(name, major=major, minor=minor, is_thread_safe=is_safe)[1] is provider
        return
    with pytest.raises(dat.DatProviderNotFound) as caught:
        found.find(name, major=major, minor=minor, is_thread_safe=is_safe)
    assert caught.value.subtype == subtype
    assert f"adapter '{name}' of version {major}.{minor}" in str(caught.value)
    assert "there are card, shm0, tcp0, udp0" in str(caught.value)


def test_the_devices_of_urds_are_built_in() -> None:
    names = [info.ia_name for info in dat.providers()]
    assert names[-3:] == ["shm0", "tcp0", "udp0"]


def test_a_file_stands_before_the_built_in_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Entries of the kernel, not default ones, and other providers' libraries are passed over."""
    file = tmp_path / "dat.conf"
    own = LINE.replace("libdapl.so", "urds.dat.devices")
    file.write_text(
        "\n".join(
            [
                LINE.replace("libdapl.so", "libdaplofa.so.2"),
                own.replace("soft0-1", "kernel").replace("u1.2", "k1.2"),
                own.replace("soft0-1", "seldom").replace(" default", " nondefault"),
                own,
            ]
        )
    )
    monkeypatch.setattr(registry, "SYSTEM_FILE", file)
    found = Registry().list_providers()
    assert [info.ia_name for info in found] == ["soft0-1", "shm0", "tcp0", "udp0"]
    assert found[0] == ProviderInfo("soft0-1", 1, 2, False)


def test_an_override_stands_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text(LINE.replace("libdapl.so", "urds.dat.devices"))
    monkeypatch.setenv("DAT_OVERRIDE", str(file))
    assert [info.ia_name for info in Registry().list_providers()] == ["soft0-1"]


@pytest.mark.parametrize("text", [None, "not a line of it", "\udcff"])
def test_a_registry_that_cannot_be_read_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "mine.conf"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.setenv("DAT_OVERRIDE", str(file))
    assert dat.dat_registry_list_providers(9) == (dat.DAT_INTERNAL_ERROR, None, None)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Install a provider's library as a module; it notes what it is asked to make."""
    inits: list[str] = []
    made: list[ProviderInfo] = []

    def dat_provider_init(info: ProviderInfo, instance_data: str) -> None:
        inits.append(instance_data)
        made.append(info)
        registry.REGISTRY.add(Provider(FakeAdapter, "10.1.2.3"), info)

    module = ModuleType("a_dat_library")
    module.dat_provider_init = dat_provider_init  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "a_dat_library", module)
    yield inits
    for info in made:
        registry.REGISTRY.remove(info)


def test_a_library_is_loaded_when_its_adapter_is_first_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: list[str]
) -> None:
    """The first entry whose library can be loaded wins."""
    file = tmp_path / "dat.conf"
    lines = [LINE.replace("libdapl.so", name) for name in ("no_such_module", "a_dat_library")]
    file.write_text("\n".join(lines).replace("nonthreadsafe", "threadsafe"))
    monkeypatch.setenv("DAT_OVERRIDE", str(file))
    for _ in range(2):
        with dat.open("soft0-1") as ia:
            assert ia.attr.ia_address_ptr == "10.1.2.3"
    assert library == ["soft0 1"]


def test_no_library_that_loads_is_no_provider(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "dat.conf"
    file.write_text(LINE.replace("libdapl.so", "no_such_module").replace("non", "", 1))
    monkeypatch.setenv("DAT_OVERRIDE", str(file))
    ret, _, ia = dat.dat_ia_open("soft0-1", 8, None)
    assert (ret, ia) == (dat.DAT_PROVIDER_NOT_FOUND, None)


# -- calls


def test_a_provider_is_added_opened_and_removed() -> None:
    provider, info = Provider(FakeAdapter), ProviderInfo("registry-test")
    assert dat.dat_registry_add_provider(provider, info) == dat.DAT_SUCCESS
    again = dat.dat_registry_add_provider(provider, info)
    assert again == dat.DAT_PROVIDER_ALREADY_REGISTERED
    with dat.open("registry-test"):
        assert dat.dat_registry_remove_provider(provider, info) == dat.DAT_PROVIDER_IN_USE
    assert dat.dat_registry_remove_provider(provider, info) == dat.DAT_SUCCESS
    assert dat.dat_registry_remove_provider(provider, info) == dat.DAT_PROVIDER_NOT_FOUND
    assert dat.dat_registry_add_provider(None, info) == dat.DAT_INVALID_PARAMETER
    assert dat.dat_registry_add_provider(provider, "name") == dat.DAT_INVALID_PARAMETER


def test_an_opening_that_fails_leaves_nothing_open() -> None:
    """A dispatcher of another kind is no asynchronous one: the adapter below is closed again."""
    made: list[FakeAdapter] = []

    def open_adapter() -> FakeAdapter:
        made.append(FakeAdapter())
        return made[-1]

    info = dat.register("registry-test", open_adapter)
    try:
        assert dat.dat_ia_open("registry-test", 0, None)[0] == dat.DAT_INVALID_PARAMETER
        assert [adapter.is_closed for adapter in made] == [True]
    finally:
        dat.unregister(info)


def test_a_list_that_is_too_short_tells_how_long_it_must_be() -> None:
    ret, count, found = dat.dat_registry_list_providers(0)
    assert (ret, found) == (dat.DAT_INVALID_PARAMETER, None)
    assert count is not None
    assert count >= 3
    assert dat.dat_registry_list_providers(count - 1)[0] == dat.DAT_INVALID_PARAMETER
    ret, count_again, found = dat.dat_registry_list_providers(count)
    assert (ret, count_again) == (dat.DAT_SUCCESS, count)
    assert found is not None
    assert len(found) == count
