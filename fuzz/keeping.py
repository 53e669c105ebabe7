"""The corpus as it is kept: one text file per target, one input per line, in hexadecimal.

What the fuzzer collects while it runs lies in `fuzz/working/TARGET`, a file per input, and belongs
to one machine. `run.py --keep` minimises that: of what reaches the same code the shortest stays.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus"
WORKING = FOLDER / "working"
FINDINGS = FOLDER / "findings"
KEPT_OCTETS_MAX = 65_536  # of one target, in all: the shortest inputs come first


def kept(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target, the shortest first."""
    place = CORPUS / f"{name}.hex"
    if not place.exists():
        return []
    return [bytes.fromhex(line) for line in place.read_text("ascii").splitlines()]


def keep(name: str, inputs: list[bytes]) -> int:
    """Keep inputs for a target in place of those before; return how many there was room for."""
    chosen: list[bytes] = []
    left = KEPT_OCTETS_MAX
    for octets in sorted(set(inputs), key=lambda one: (len(one), one)):
        left -= len(octets)
        if left < 0:
            break
        chosen.append(octets)
    CORPUS.mkdir(exist_ok=True)
    lines = "".join(f"{octets.hex()}\n" for octets in chosen)
    (CORPUS / f"{name}.hex").write_text(lines, encoding="ascii")
    return len(chosen)


def prepare(name: str, seeds: tuple[bytes, ...]) -> Path:
    """Return the working folder of a target, with its seeds and what is kept of it."""
    folder = WORKING / name
    for place in (folder, FINDINGS):
        place.mkdir(parents=True, exist_ok=True)
    for kind, inputs in (("seed", seeds), ("kept", kept(name))):
        for index, octets in enumerate(inputs):
            (folder / f"{kind}{index}").write_bytes(octets)
    return folder
