"""`urds config`: every setting with its value and its source."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, urds
from urds.cli.rds.config import value_text
from urds.rds.settings import Settings, names


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "urds.toml"
    file.write_text('npaths = 2\nallow = ["10.0.0.0/8", "any"]\n')
    return {"URDS_CONFIG": str(file), "URDS_NPATHS": "4", "URDS_SHARED_MEMORY": "no"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_setting_is_a_line_with_its_source(extra: str, sources: dict[str, str]) -> None:
    done = urds("config", extra=extra, changes=sources)
    assert (done.code, done.err) == (0, "")
    title, *lines = [line.split(maxsplit=2) for line in done.out.splitlines()[1:]]
    assert title == ["Setting", "Value", "Source"]
    assert [line[0] for line in lines] == list(names())
    found = {line[0]: line[1:] for line in lines}
    assert found["npaths"] == ["4", "variable URDS_NPATHS"]
    assert found["allow"] == ["10.0.0.0/8,any", f"file {sources['URDS_CONFIG']}"]
    assert found["shared_memory"] == ["false", "variable URDS_SHARED_MEMORY"]
    assert found["tcp_port"] == ["16385", "default"]


def test_json_has_values_of_their_types(sources: dict[str, str]) -> None:
    done = urds("config", "--json", changes=sources)
    found = json.loads(done.out)
    assert list(found) == list(names())
    assert found["npaths"] == {"value": 4, "source": "variable URDS_NPATHS"}
    assert found["allow"]["value"] == ["10.0.0.0/8", "any"]
    assert found["info_socket"] == {"value": True, "source": "default"}


def test_a_value_is_written_as_the_environment_takes_it() -> None:
    settings = Settings(allow=("10.0.0.0/8", "fd00::/8"), shared_memory=False, drain_s=0.5)
    environ = {f"URDS_{name.upper()}": value_text(getattr(settings, name)) for name in names()}
    assert Settings.load(environ=environ) == settings
