"""Tunables: sources and their order, ranges, words of a refusal."""

import re
from dataclasses import FrozenInstanceError
from ipaddress import ip_network
from pathlib import Path

import pytest

from urds.common.errors import SettingError
from urds.rds import settings
from urds.rds.settings import ALIASES, Settings, names, sources, unknown_variables

SIZES = [
    *("wmem_default", "rmem_default", "wmem_max", "rmem_max", "max_message_bytes"),
    *("max_unacked_bytes", "tcp_sndbuf", "tcp_rcvbuf", "shared_memory_bytes"),
]


def load(values: dict[str, object] | None = None, **environ: str) -> Settings:
    return Settings.load(values, environ=environ)


@pytest.mark.rule("rds7-ack-default", "rds7-reconnect-limits")
def test_defaults_are_those_of_linux() -> None:
    settings = load(URDS_STRICT_LINUX="1")
    assert settings == Settings(strict_linux=True)
    assert (settings.wmem_max, settings.rmem_max) == (212_992, 212_992)
    assert (settings.reconnect_min_delay_ms, settings.reconnect_max_delay_ms) == (1, 1000)
    assert (settings.max_unacked_packets, settings.max_unacked_bytes) == (8, 16 << 20)
    assert (settings.send_bytes_default, settings.receive_bytes_default) == (106_496, 106_496)
    assert settings.max_message_bytes == 1 << 20
    assert settings.tcp_port == 16385
    assert settings.allow == ()


def test_by_default_the_longest_message_of_rds_fits() -> None:
    settings = load()
    assert (settings.send_bytes_default, settings.receive_bytes_default) == (1 << 20, 106_496)
    assert (settings.wmem_max, settings.rmem_max) == (64 << 20, 64 << 20)
    assert settings.max_message_bytes == 8 << 20


def test_what_is_set_outranks_the_defaults_of_strict_linux() -> None:
    settings = load({"strict_linux": True, "wmem_max": "5M"})
    assert (settings.wmem_max, settings.rmem_max) == (5 << 20, 212_992)


def test_a_default_is_bounded_by_its_maximum() -> None:
    settings = load(
        {"wmem_default": "8M", "wmem_max": "1M", "rmem_default": "8M", "rmem_max": 3000}
    )
    assert (settings.send_bytes_default, settings.receive_bytes_default) == (1 << 20, 3000)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("5M", 5 << 20), ("5m", 5 << 20), ("5MiB", 5 << 20), ("5mib", 5 << 20), ("5MB", 5_000_000),
        ("64K", 65_536), ("64KiB", 65_536), ("64kB", 64_000), ("64k", 65_536), (" 64KiB ", 65_536),
        ("1G", 1 << 30), ("1GiB", 1 << 30), ("1GB", 10**9), ("65536B", 65_536), ("65536", 65_536),
        ("0x10000", 65_536), ("65_536", 65_536), (65_536, 65_536),
    ],
)  # fmt: skip
def test_a_size_may_have_a_unit(text: object, size_bytes: int, tmp_path: Path) -> None:
    assert load({"max_message_bytes": text}).max_message_bytes == size_bytes
    assert load(URDS_MAX_UNACKED_BYTES=str(text)).max_unacked_bytes == size_bytes
    if isinstance(text, str):
        file = tmp_path / "urds.toml"
        file.write_text(f'max_message_bytes = "{text}"\n')
        assert load(URDS_CONFIG=str(file)).max_message_bytes == size_bytes


@pytest.mark.parametrize("name", SIZES)
def test_every_size_takes_a_unit(name: str) -> None:
    assert getattr(load({name: "64KiB"}), name) == 65_536


@pytest.mark.parametrize(
    "text",
    ["", "M", "5T", "5 M", "-5M", "5.5M", "5Mi", "5MM", "5MiBs", "M5", "5b5", True, 1.5, None],
)
def test_other_texts_are_no_sizes(text: object) -> None:
    with pytest.raises(SettingError, match=r"from 1 to 4294967295 bytes, such as 64KiB or 5M"):
        load({"max_message_bytes": text})


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load().npaths = 2  # type: ignore[misc]  # this is the point


@pytest.mark.rule("rds7-sysctl-files")
def test_later_sources_outrank_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_text('npaths = 2\nkeepalive_count = 3\ndrain_s = 0.25\nallow = ["10.0.0.0/8"]\n')
    settings = load({"npaths": 8}, URDS_CONFIG=str(file), URDS_NPATHS="4", URDS_KEEPALIVE_COUNT="9")
    assert settings.npaths == 8
    assert settings.keepalive_count == 9
    assert settings.drain_s == 0.25
    assert settings.allow == ("10.0.0.0/8",)


@pytest.mark.rule("rds7-sysctl-files", "wire-security-tunable")
@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_an_alias_works_in_every_source(alias: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_text(f"{alias} = 5000\n")
    given = [
        load({alias: 5000, "reconnect_max_delay_ms": 9000} if "min" in alias else {alias: 5000}),
        load({"reconnect_max_delay_ms": 9000} if "min" in alias else {}, URDS_CONFIG=str(file)),
        load(
            {"reconnect_max_delay_ms": 9000} if "min" in alias else {},
            **{f"URDS_{alias.upper()}": "5000"},
        ),
    ]
    assert [getattr(settings, name) for settings in given] == [5000] * 3


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("URDS_NPATHS", "3", "npaths = '3', in variable URDS_NPATHS: must be one of 1, 2, 4, 8"),
        ("URDS_TCP_PORT", "0", "tcp_port = '0', in variable URDS_TCP_PORT: must be a whole number"),
        ("URDS_TCP_PORT", "x", "from 1 to 65535"),
        ("URDS_WMEM_MAX", "1", "wmem_max = '1', in variable URDS_WMEM_MAX"),
        ("URDS_MAX_MESSAGE_BYTES", str(1 << 32), "from 1 to 4294967295"),
        ("URDS_DRAIN_S", "-1", "seconds from 0 to 3600"),
        ("URDS_DRAIN_S", "nan", "seconds from 0 to 3600"),
        ("URDS_PING_ENABLE", "perhaps", "true or false"),
        ("URDS_ALLOW", "10.0.0.0/8 hosts", "or `any`"),
        ("URDS_NODE", "relative/path", "absolute path"),
    ],
)
def test_a_bad_value_names_key_value_range_and_source(
    variable: str, value: str, words: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        load(**{variable: value})


def test_a_file_is_named_with_its_bad_value(tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_text("npaths = 16\n")
    with pytest.raises(SettingError, match=re.escape(f"npaths = 16, in file {file}: must be one")):
        load(URDS_CONFIG=str(file))


@pytest.mark.parametrize(
    "content",
    [
        b"npaths = [",
        b"\xff\xfe",
        b"#" * ((1 << 20) + 1),
        b"npaths = " + b"[" * 5000,
        b"npaths = " + b"9" * 5000,
    ],
)
def test_a_broken_file_is_a_setting_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_bytes(content)
    with pytest.raises(SettingError, match="URDS_CONFIG"):
        load(URDS_CONFIG=str(file))


@pytest.mark.parametrize("value", ["1" + "0" * 400, "0x" + "f" * 5000])
def test_a_number_beyond_all_bounds_is_a_setting_error(value: str, tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_text(f"drain_s = {value}\n")
    with pytest.raises(SettingError, match=r"drain_s = .*must be seconds from 0"):
        load(URDS_CONFIG=str(file))


def test_a_missing_file_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match="URDS_CONFIG"):
        load(URDS_CONFIG="/nonexistent/urds.toml")


def test_an_unknown_key_is_refused_and_a_near_one_proposed() -> None:
    with pytest.raises(SettingError, match=r"peer_max: no such setting.*did you mean peers_max"):
        load({"peer_max": 1})


def test_an_unknown_variable_is_listed_and_changes_nothing() -> None:
    assert load(URDS_SOMETHING="1") == load()
    environ = {"URDS_SOMETHING": "1", "URDS_NPATHS": "2", "HOME": "/", "URDS_ANYTHING": ""}
    assert unknown_variables(environ) == ["URDS_ANYTHING", "URDS_SOMETHING"]


def test_each_variable_that_urds_reads_is_known() -> None:
    """Those of the sources, but for names that only a header of C has."""
    source = Path(settings.__file__).parents[1]
    read = {
        found
        for path in source.rglob("*.py")
        for found in re.findall(r'"(URDS_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert read > {"URDS_IMPL", "URDS_CONFIG"}
    assert unknown_variables(dict.fromkeys(read, "")) == []


def test_the_source_of_each_value_is_told(tmp_path: Path) -> None:
    file = tmp_path / "urds.toml"
    file.write_text("npaths = 2\ndrain_s = 0.25\nrds_tcp_sndbuf = 5000\n")
    environ = {"URDS_CONFIG": str(file), "URDS_NPATHS": "4", "URDS_KEEPALIVE_COUNT": "9"}
    found = sources({"keepalive_count": 7}, environ=environ)
    assert list(found) == list(names())
    assert {name: source for name, source in found.items() if source != "default"} == {
        "npaths": "variable URDS_NPATHS",
        "drain_s": f"file {file}",
        "tcp_sndbuf": f"file {file}",
        "keepalive_count": "Python",
    }


def test_a_delay_above_its_maximum_is_refused() -> None:
    with pytest.raises(SettingError, match="reconnect_min_delay_ms = 2000 is above"):
        load({"reconnect_min_delay_ms": 2000})


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_words_for_true(word: str) -> None:
    assert load(URDS_STRICT_LINUX=word).strict_linux is True


def test_allow_takes_networks_and_any() -> None:
    networks = load(URDS_ALLOW="10.1.2.3/8, fd00::/8").networks()
    assert networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert load(URDS_ALLOW="any").networks() == (ip_network("0.0.0.0/0"), ip_network("::/0"))


def test_python_values_are_checked_without_loading() -> None:
    with pytest.raises(SettingError, match="npaths = True, in Python"):
        Settings(npaths=True)
