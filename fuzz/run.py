"""Fuzz the parsers with atheris, one process per target.

    make fuzz
    .venv-fuzz/bin/python fuzz/run.py --seconds 3600 header

A finding ends its target with a report; the octets that caused it lie in `fuzz/findings/`.
New octets that reached new code are kept in `fuzz/corpus/TARGET/`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SECONDS = 300
OCTETS_MAX = 16384


def main() -> int:
    """Run the targets named, all by default; return 1 if one of them found something."""
    parser = argparse.ArgumentParser(description="Fuzz the parsers.")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="time for each target")
    parser.add_argument("--one", action="store_true", help="run one target in this process")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="fuzz/targets.py has them")
    options = parser.parse_args()
    if options.one:
        return _fuzz(options.targets[0], options.seconds)
    # Here, not above: a target's own process must import the parsers under instrumentation.
    from targets import TARGETS

    found = []
    for name in options.targets or TARGETS:
        command = [sys.executable, __file__, "--one", "--seconds", str(options.seconds), name]
        code = subprocess.run(command, check=False).returncode
        print(f"{name}: {'finding, see above' if code else 'nothing found'}", flush=True)
        found += [name] * bool(code)
    return bool(found)


def _fuzz(name: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["urds"]):
        from targets import SEEDS, TARGETS

        from urds.errors import WireError
    corpus, findings = FOLDER / "corpus" / name, FOLDER / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    (corpus / "seed").write_bytes(SEEDS[name])

    def try_octets(octets: bytes) -> None:
        try:
            TARGETS[name](octets)
        except WireError:
            return

    limits = [f"-max_total_time={seconds}", f"-max_len={OCTETS_MAX}"]
    atheris.Setup([name, *limits, f"-artifact_prefix={findings}/{name}-", str(corpus)], try_octets)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
