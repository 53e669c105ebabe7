#!/bin/sh
# Run every test that needs neither root nor a virtual machine: `suite.sh "PYTEST -m" REPORTS`.
#
# What computes runs on two cores. What has processes and waits of its own comes after that, one
# test after the other, for there a second one beside it would be felt.
set -u
pytest=$1 reports=$2
computing="tests/unit tests/vectors tests/property tests/health tests/sim tests/verbs tests/dat tests/rsocket"
others=$(for folder in tests/*/; do
    case " $computing " in *" ${folder%/} "*) ;; *) echo "${folder%/}" ;; esac
done | grep -v __pycache__)
# shellcheck disable=SC2086  # one word per folder
$pytest "not interop and not namespaces" -n 2 --junitxml="$reports/test-computing.xml" $computing
computed=$?
# shellcheck disable=SC2086  # as above
$pytest "not interop and not namespaces" --junitxml="$reports/test.xml" $others
waited=$?
exit $((computed > waited ? computed : waited))
