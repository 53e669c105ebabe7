#!/bin/sh
# Run every test that needs neither root nor a virtual machine:
# `suite.sh "PYTEST -m" REPORTS PYTHON`.
#
# The compiled plane is built if it can be here, and if not, a line says why. Then Rust's own tests;
# all others on the Python plane; and on the compiled one once more those of what a program sees of
# a plane. What computes runs on two cores. What has processes and waits of its own comes after
# that, one test after the other, for there a second one beside it would be felt.
set -u
pytest=$1 reports=$2 python=$3
chosen="not interop and not namespaces"
computing="tests/unit tests/vectors tests/property tests/health tests/sim tests/verbs tests/dat
    tests/rsocket"
others=$(for folder in tests/*/; do
    case " "$(echo $computing)" " in *" ${folder%/} "*) ;; *) echo "${folder%/}" ;; esac
done | grep -v __pycache__)
# tests/parity has run on both planes by then. Of tests/cli the tools that send and receive.
compiled="tests/sockets tests/lanes tests/aio tests/tcp tests/faults
    tests/rdma/test_rdma_differences.py tests/cli/test_demo.py tests/cli/test_info.py
    tests/cli/test_ping.py tests/cli/test_stress.py"

worst=0
note() {  # note CODE: remember the worst exit code
    [ "$1" -le "$worst" ] || worst=$1
}

rm -f "$reports/test-native.xml" "$reports/rust.xml"
$python -m tools.native build --optional
built=$?
note $built
ready=
$python -m tools.native ready >/dev/null && ready=yes
# That it is missing has been counted; Python's tests need not fail for it one by one.
[ -n "$ready" ] || unset URDS_NATIVE_REQUIRED
# Sources that do not build as a module may still be tested; what is not there at all has been said.
if [ -n "$ready" ] || [ $built -ne 0 ]; then
    $python -m tools.native test --optional --junit "$reports/rust.xml"
    note $?
fi
# shellcheck disable=SC2086  # one word per folder, here and below
URDS_IMPL=python $pytest "$chosen" -n 2 --junitxml="$reports/test-computing.xml" $computing
note $?
# shellcheck disable=SC2086
URDS_IMPL=python $pytest "$chosen" --junitxml="$reports/test.xml" $others
note $?
if [ -n "$ready" ]; then
    $python -m tools.native rules --optional
    note $?
    # RDMA is in Python here too, but on a plane beside the compiled one, and messages cross. A plane
    # that is broken altogether fails its first tests, and need not wait for all of them.
    # shellcheck disable=SC2086
    URDS_IMPL=native timeout --foreground --kill-after=30 20m $pytest \
        "$chosen and not reference" --maxfail=20 \
        --junitxml="$reports/test-native.xml" $compiled
    note $?
else
    echo "Nothing was tested on the compiled plane: there is none."
fi
exit "$worst"
