"""Fuzz the parsers with atheris, one process per target.

    make fuzz
    .venv-fuzz/bin/python fuzz/run.py --seconds 3600 header

A finding ends its target with a report; the octets that caused it lie in `fuzz/findings/`.
New octets that reached new code are kept in `fuzz/corpus/TARGET/`. With `--plain` no atheris is
needed: seeds and corpus are changed at random, for Pythons that it does not support.
"""

import argparse
import random
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SECONDS = 300
OCTETS_MAX = 16384
RUN_S_MAX = 10  # one input that takes longer is a finding


def main() -> int:
    """Run the targets named, all by default; return 1 if one of them found something."""
    parser = argparse.ArgumentParser(description="Fuzz the parsers.")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="time for each target")
    parser.add_argument("--one", action="store_true", help="run one target in this process")
    parser.add_argument("--plain", action="store_true", help="random changes, without atheris")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="fuzz/targets.py has them")
    options = parser.parse_args()
    sys.path[0] = str(FOLDER.parent)  # `fuzz` is a package for tests and for us
    if options.one:
        run = _run_plain if options.plain else _fuzz
        return run(options.targets[0], options.seconds)
    # Here, not above: a target's own process must import the parsers under instrumentation.
    from fuzz.targets import TARGETS

    found = []
    for name in options.targets or TARGETS:
        command = [sys.executable, __file__, "--one", "--seconds", str(options.seconds), name]
        command += ["--plain"] * options.plain
        code = subprocess.run(command, check=False).returncode
        print(f"{name}: {'finding, see above' if code else 'nothing found'}", flush=True)
        found += [name] * bool(code)
    return bool(found)


def _folders(name: str) -> tuple[Path, Path]:
    corpus, findings = FOLDER / "corpus" / name, FOLDER / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    return corpus, findings


def _fuzz(name: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["urds"]):
        from fuzz.targets import SEEDS, TARGETS
        from urds.errors import WireError
    corpus, findings = _folders(name)
    for index, seed in enumerate(SEEDS[name]):
        (corpus / f"seed{index}").write_bytes(seed)

    def try_octets(octets: bytes) -> None:
        try:
            TARGETS[name](octets)
        except WireError:
            return

    limits = [f"-max_total_time={seconds}", f"-max_len={OCTETS_MAX}", f"-timeout={RUN_S_MAX}"]
    atheris.Setup([name, *limits, f"-artifact_prefix={findings}/{name}-", str(corpus)], try_octets)
    atheris.Fuzz()
    return 0


def _run_plain(name: str, seconds: int) -> int:
    """Change seeds and corpus at random until time is over or something is found."""
    from fuzz.mutation import mutate
    from fuzz.targets import SEEDS, TARGETS
    from urds.errors import WireError

    corpus, findings = _folders(name)
    seeds = [*SEEDS[name], *(path.read_bytes() for path in sorted(corpus.iterdir()))]
    chance = random.Random()  # another search each time
    end_s, runs, slow = time.monotonic() + seconds, 0, 0
    while (began_s := time.monotonic()) < end_s:
        octets = mutate(chance.choice(seeds), seeds, chance)
        try:
            TARGETS[name](octets)
        except WireError:
            pass
        finally:
            is_slow = time.monotonic() - began_s > RUN_S_MAX
            slow += is_slow
            if is_slow or sys.exc_info()[0] is not None:
                place = findings / f"{name}-{sha256(octets).hexdigest()[:16]}"
                place.write_bytes(octets)
                print(f"{name}: {place.name}, {time.monotonic() - began_s:.1f} s", flush=True)
        runs += 1
    print(f"{name}: {runs} runs", flush=True)
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
