"""The configuration files of rsockets: defaults, ranges, and who says what is wrong."""

from pathlib import Path

import pytest

from urds.common.errors import SettingError
from urds.rsocket import settings
from urds.rsocket.settings import RANGES, RsocketSettings


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a process does that has made no rsocket yet."""
    # The state is that of a process.
    monkeypatch.setattr(settings, "_process", settings._ProcessSettings())
    monkeypatch.delenv(settings.DIRECTORY_VARIABLE, raising=False)


def test_an_absent_directory_gives_the_defaults(tmp_path: Path) -> None:
    assert RsocketSettings.load(tmp_path / "nowhere") == RsocketSettings()


@pytest.mark.rule("rsocket-defaults")
def test_defaults_are_those_of_the_reference() -> None:
    found = RsocketSettings()
    assert (found.sqsize_default, found.rqsize_default, found.inline_default) == (384, 384, 64)
    assert (found.mem_default, found.wmem_default, found.iomap_size) == (None, 1 << 17, 0)
    assert (found.polling_time, found.wake_up_interval) == (10, 500)


def test_each_file_sets_its_field(tmp_path: Path) -> None:
    for number, name in enumerate(RANGES):
        (tmp_path / name).write_text(f" {4096 + number}\n")
    found = RsocketSettings.load(tmp_path)
    assert [getattr(found, name) for name in RANGES] == [4096 + n for n in range(len(RANGES))]


def test_other_files_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "preload_config").write_text("* inet stream tcp\n")
    assert RsocketSettings.load(tmp_path) == RsocketSettings()


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("side", [0, 1])
def test_the_ends_of_a_range_belong_to_it(tmp_path: Path, name: str, side: int) -> None:
    (tmp_path / name).write_text(str(RANGES[name][side]))
    RsocketSettings.load(tmp_path)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_out_of_range_names_file_value_and_range(
    tmp_path: Path, name: str, side: int
) -> None:
    low, high = RANGES[name]
    value = (low - 1, high + 1)[side]
    (tmp_path / name).write_text(str(value))
    with pytest.raises(SettingError) as caught:
        RsocketSettings.load(tmp_path)
    for part in (str(tmp_path / name), str(value), str(low), str(high)):
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["", "many", "1.5", "0x10", "1 2", "9" * 100, "é"])
def test_what_is_no_whole_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "sqsize_default").write_text(text)
    with pytest.raises(SettingError, match="sqsize_default"):
        RsocketSettings.load(tmp_path)


def test_a_directory_in_a_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "sqsize_default").mkdir()
    with pytest.raises(SettingError, match="sqsize_default"):
        RsocketSettings.load(tmp_path)


def test_a_small_send_buffer_becomes_one_page(tmp_path: Path) -> None:
    """Source: docs/reference/rsocket.md 1."""
    assert [RsocketSettings(wmem_default=size).wmem_default for size in (1, 2047, 2048)] == [
        4096,
        4096,
        2048,
    ]


def test_the_environment_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqsize_default").write_text("100")
    monkeypatch.setenv(settings.DIRECTORY_VARIABLE, str(tmp_path))
    assert settings.current().sqsize_default == 100


def test_the_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DIRECTORY_VARIABLE, str(tmp_path))
    settings.current()
    (tmp_path / "sqsize_default").write_text("100")
    assert settings.current().sqsize_default == 384


def test_configure_outranks_the_environment_until_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.DIRECTORY_VARIABLE, str(tmp_path / "nowhere"))
    (tmp_path / "rqsize_default").write_text("77")
    assert settings.configure(directory=tmp_path).rqsize_default == 77
    assert settings.current().rqsize_default == 77
    settings.configure(directory=None)
    assert settings.current().rqsize_default == 384


def test_a_bad_directory_changes_nothing(tmp_path: Path) -> None:
    before = settings.current()
    (tmp_path / "rqsize_default").write_text("1")
    with pytest.raises(SettingError):
        settings.configure(directory=tmp_path)
    assert settings.current() is before


def test_a_value_from_python_is_judged_too() -> None:
    with pytest.raises(SettingError, match="polling_time = -1"):
        RsocketSettings(polling_time=-1)
