"""`urds node` with a stand-in for the plane: `python -m tests.rds.node.program OPTIONS-AS-JSON`."""

import json
import sys

from urds.cli.output import Exit, guarded
from urds.rds.node import supervisor
from urds.rds.node.start import StartOptions, serve
from urds.rds.node.supervisor import DEATHS_MAX

WORKER = ("-m", "tests.rds.node.stand_in")


def main() -> int:
    """Run it as the command does."""
    values = json.loads(sys.argv[1])
    worker = tuple(values.pop("worker", WORKER))
    # Its own is longer than a test has time for.
    vars(supervisor)["_END_WAIT_S"] = values.pop("end_wait_s", supervisor._END_WAIT_S)
    deaths_max = values.pop("deaths_max", DEATHS_MAX)

    def run() -> Exit:
        return Exit(serve(StartOptions(**values), worker=worker, deaths_max=deaths_max))

    return guarded("urds node", run)


if __name__ == "__main__":
    sys.exit(main())
