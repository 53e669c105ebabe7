"""The corpus as it is kept: one text file per target, one input per line, in hexadecimal.

Inputs that the fuzzer collects are in `fuzz/working/TARGET`, a file per input, and belong to one
machine. `run.py --keep` minimises them: of inputs that reach the same code the shortest stays.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus"
WORKING = FOLDER / "working"
FINDINGS = FOLDER / "findings"
KEPT_BYTES_MAX = 65_536  # of one target, in all: the shortest inputs come first


def kept(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target, the shortest first."""
    place = CORPUS / f"{name}.hex"
    if not place.exists():
        return []
    return [bytes.fromhex(line) for line in place.read_text("ascii").splitlines()]


def keep(name: str, inputs: list[bytes]) -> int:
    """Keep inputs for a target in place of those before; return how many there was room for."""
    chosen: list[bytes] = []
    left = KEPT_BYTES_MAX
    for data in sorted(set(inputs), key=lambda one: (len(one), one)):
        left -= len(data)
        if left < 0:
            break
        chosen.append(data)
    CORPUS.mkdir(exist_ok=True)
    lines = "".join(f"{data.hex()}\n" for data in chosen)
    (CORPUS / f"{name}.hex").write_text(lines, encoding="ascii")
    return len(chosen)


def prepare(name: str, seeds: tuple[bytes, ...]) -> Path:
    """Return the working folder of a target, with its seeds and what is kept of it."""
    folder = WORKING / name
    for place in (folder, FINDINGS):
        place.mkdir(parents=True, exist_ok=True)
    for kind, inputs in (("seed", seeds), ("kept", kept(name))):
        for index, data in enumerate(inputs):
            (folder / f"{kind}{index}").write_bytes(data)
    return folder
