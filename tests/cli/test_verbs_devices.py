"""`urds verbs devices`: the devices of this host in the form of ibv_devinfo."""

import json
import re

import pytest

from tests.cli.commands import EXTRAS, urds
from urds.verbs.device import get_device_list

NAMES = [device.name for device in get_device_list()]


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_device_is_shown_with_its_port(extra: str) -> None:
    done = urds("verbs", "devices", extra=extra)
    assert (done.code, done.err) == (0, "")
    assert re.findall(r"^hca_id: (\S+)$", done.out, re.MULTILINE) == NAMES
    assert done.out.count("            state:              PORT_ACTIVE (4)\n") == len(NAMES)
    assert done.out.count("            max_mtu:            4096 (5)\n") == len(NAMES)
    assert "max_qp_wr" not in done.out


def test_verbose_shows_all_attributes_of_one() -> None:
    done = urds("verbs", "devices", "-d", "tcp0", "-v")
    found = dict(line.strip().split(maxsplit=1) for line in done.out.splitlines() if line)
    assert found["hca_id:"] == "tcp0"
    assert (found["max_qp_wr:"], found["raw_connect:"]) == ("16384", "False")
    assert (found["receive_order:"], found["lossless:"]) == ("IN_ORDER", "True")


def test_json_has_a_record_for_each() -> None:
    found = json.loads(urds("verbs", "devices", "--json").out)
    assert [one["name"] for one in found] == NAMES
    assert all(one["port"]["gid[0]"].count(":") == 7 for one in found)
    assert all(one["max_sge"] == 32 for one in found)


def test_an_unknown_device_is_wrong_usage() -> None:
    done = urds("verbs", "devices", "-d", "mlx5_0")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"urds verbs devices: -d mlx5_0: must be one of {', '.join(NAMES)}\n"
