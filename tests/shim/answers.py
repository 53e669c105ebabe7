"""Make the calls of rows, and print what each returned or raised, as JSON.

    python answers.py ADDRESS kernel|inprocess < [[prepare, [row, ...]], ...]

`kernel` makes sockets of `socket.socket`, which under the hooks are a node's; `inprocess` those of
`urds`.
"""

import errno
import json
import sys
import time
from pathlib import Path
from typing import Any

WORKLOAD = Path(__file__).parents[1] / "interop" / "lab" / "workload.py"
OURS = "import urds\ndef new_socket(kind=5, protocol=0): return urds.socket(21, kind, protocol)\n"
DELIVERY_S = 0.02
CLOSE = "s.close(); t.close()"


def outcome(names: dict[str, Any], prepare: str, row: str) -> str:
    """Run one row with fresh sockets; return its value as text, or the name of its errno."""
    exec(prepare, names)
    *before, last = [part.strip() for part in row.split("; ")]
    try:
        exec("; ".join(before), names)
        time.sleep(DELIVERY_S)  # of what was sent, by another process
        try:
            return repr(eval(last, names))
        except SyntaxError:
            exec(last, names)
            return "None"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    finally:
        exec(CLOSE, names)


def main() -> None:
    """Read the rows and print the outcomes."""
    address, where = sys.argv[1:]
    names: dict[str, Any] = {}
    exec(WORKLOAD.read_text("utf-8") + (OURS if where == "inprocess" else ""), names)
    names["local"] = address
    groups = json.load(sys.stdin)
    print(json.dumps([[outcome(names, prepare, row) for row in rows] for prepare, rows in groups]))


if __name__ == "__main__":
    main()
