"""`python -m urds`: the command line of a checkout or an environment without scripts."""

import sys

from urds.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
