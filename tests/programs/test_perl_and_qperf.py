"""Perl's socket calls and Debian's qperf, whose blocking read is ended by SIGALRM."""

import re
import shutil

import pytest

from tests.cli.commands import address
from tests.programs.conftest import Apart
from tests.shim.conftest import Programs

PERL = r"""
use Socket;
my ($host, $port) = @ARGV;
socket(my $s, 21, 5, 0) or die "socket: $!";
socket(my $t, 21, 5, 0) or die "socket: $!";
bind($s, pack_sockaddr_in(0, inet_aton($host))) or die "bind: $!";
bind($t, pack_sockaddr_in(0, inet_aton($host))) or die "bind: $!";
defined(send($s, "hello", 0, getsockname($t))) or die "send: $!";
my $bits = ''; vec($bits, fileno($t), 1) = 1;
select($bits, undef, undef, 10) == 1 or die "select: $!";
my $from = recv($t, my $data, 100, 0) or die "recv: $!";
my ($source) = unpack_sockaddr_in($from);
my ($own) = unpack_sockaddr_in(getsockname($s));
print "$data ", ($source == $own ? "from it" : "from $source, not $own"), "\n";
"""
PORTS = range(19765, 19775)  # as many tries: qperf tells its port before it listens


def test_perl(programs: Programs) -> None:
    if shutil.which("perl") is None:
        pytest.skip("no perl on this machine")
    done = programs.run("perl", "-e", PERL, address(10))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "hello from it\n")


@pytest.mark.parametrize("bytes_each", ["1", "64K"])
@pytest.mark.parametrize(("test", "figure"), [("rds_lat", "latency"), ("rds_bw", "bw")])
def test_qperf(test: str, figure: str, bytes_each: str, apart: Apart) -> None:
    """Both sides under a `urds run` of their own find one node, and bind one address."""
    if shutil.which("qperf") is None:
        pytest.skip("no qperf on this machine (Debian: qperf)")
    client = f"$run qperf -lp $port -t 1 -m {bytes_each} 127.0.0.1 {test}"
    done = apart(
        f"for port in {' '.join(map(str, PORTS))}; do $run qperf -lp $port & server=$!; sleep 1;"
        f" {client} >out 2>&1; code=$?; kill $server; grep -q 'Connection refused' out || break;"
        f" done; cat out; exit $code".replace("out", "$XDG_RUNTIME_DIR/out")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{figure} +=", done.stdout), done.stdout
