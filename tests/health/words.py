"""Retired words: names and sentences use the words of RDS, RDMA, TCP, Python and Rust instead.

`python -m tests.health.words src/urds/verbs` lists each occurrence below a path, with its line;
`--lower` writes counts that have fallen into `words_pending.toml`.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from tests.health.sources import ROOT

PENDING = Path(__file__).with_name("words_pending.toml")
CODE = ("src/urds", "native/crates", "tests", "tools", "benches", "examples", "fuzz")
PROSE = ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "native/README.md")
# These two hold the list itself.
NOT_CHECKED = ("tests/health/words.py", "tests/health/test_words.py")
# Documents of the wire say octets, as their standards do.
WIRE_DOCUMENTS = ("docs/protocol", "docs/reference")


class Where(Enum):
    """Where a word is retired."""

    NAME = auto()  # as a whole name: `chance`, `_chance`, not `loss_chance`
    PART = auto()  # as a part of a name: `LaneMeeting`, `lanes_open`
    PROSE = auto()  # as a part of a name, and in comments, texts and documents


@dataclass(frozen=True, slots=True)
class Retired:
    """Some words that mean one thing, and what to say instead."""

    words: str  # separated by spaces
    say: str
    where: Where
    only: tuple[str, ...] = ()  # folders; () is everywhere
    standard: str = ""  # names and phrases of a standard that contain a word, a regular expression


RUST = ("native/crates",)
PRODUCT = ("src/urds", "native/crates")
RDS = ("src/urds/rds", "native/crates")

RETIRED = (
    Retired("refusal refusals", "error reason, reject", Where.PART),
    Retired("breach breaches breached", "protocol error", Where.PROSE),
    Retired(
        "repeat repeats",
        "retransmit (RDS), retry (RDMA)",
        Where.PART,
        PRODUCT,
        standard=r"\.repeat\(|\brepeat_n\(",  # of itertools, of Rust's slices and iterators
    ),
    Retired("life lives", "generation, restart", Where.PART, PRODUCT),
    Retired("owe owes owed owing", "ack_pending, unacked", Where.PART, PRODUCT),
    Retired("question questions", "ack_request", Where.PART, RDS),
    Retired("tails", "corked, batch", Where.PART, PRODUCT),
    Retired("vain vainly", "empty (read)", Where.PROSE),
    Retired("doomed doom", "streams_to_close", Where.PROSE),
    Retired("judge judges judged judging", "accept_or_drop, check, admission", Where.PART, PRODUCT),
    Retired("noticing remembering", "notifications, receive_state", Where.PART, PRODUCT),
    Retired("helper helpers", "progress thread, background", Where.PART, PRODUCT),
    Retired("desk desks chair chairs", "wait queue, leader slot", Where.PROSE),
    Retired("gate", "parked", Where.PART, PRODUCT),
    Retired("crank cranks", "progress", Where.PROSE),
    Retired("turn turns pump pumps pumping", "progress", Where.PART, PRODUCT),
    Retired("settle settles settled", "finish_pass, complete", Where.PART, PRODUCT),
    Retired("bell bells", "doorbell", Where.PROSE),
    Retired("grave graves bury buries buried", "deferred release, defer", Where.PROSE),
    Retired("remains", "Deferred", Where.PART, PRODUCT),
    Retired("ground grounds", "MessageSink", Where.PART, PRODUCT),
    Retired("offer offers", "WriteBuffer", Where.PART, RUST),
    Retired("carriage carriages", "message transport", Where.PROSE),
    Retired("carried carrying", "message transport", Where.PART),
    Retired("lane lanes", "shm stream", Where.PROSE, standard=r"virtual lanes?"),
    Retired("shun shuns shunned shunning", "block, blocked_until", Where.PROSE),
    Retired("stranger strangers lobby", "pending connection, accept queue", Where.PROSE),
    Retired("guest guests", "pending connection", Where.PART, PRODUCT),
    Retired("dismiss dismisses dismissed", "drop", Where.PART, PRODUCT),
    Retired("seeker seekers seeking seeks sought", "reconnect", Where.PART, PRODUCT),
    Retired("hasten hastens hastened", "retry_now", Where.PROSE),
    Retired("rests resting rested", "quarantine", Where.PART, PRODUCT),
    Retired("knock knocks knocked knocking", "call-back request", Where.PROSE),
    Retired("poke pokes poked", "probe_dead_stream", Where.PROSE),
    Retired("chance", "rng", Where.NAME),
    Retired("acceptance by_arrival", "receive_order, ARRIVAL_ORDER", Where.NAME, PRODUCT),
    Retired("lend lends lent lending loan loans", "map_remote, mapping", Where.PART),
    Retired("grant grants borrow borrows borrowed", "peer_mapping", Where.PART, ("src/urds",)),
    Retired("stretch stretches", "range", Where.PART, PRODUCT),
    Retired("publishing", "sgl_updates", Where.PART, ("src/urds",)),
    Retired("is_own", "is_urds_peer", Where.NAME, ("src/urds",)),
    Retired("opening openings", "device context, open", Where.NAME, ("src/urds",)),
    Retired("books ledger ledgers", "per_pair_state, MessageLog", Where.PART),
    Retired("tally tallies", "Counters", Where.PART),
    Retired("octet octets", "byte, bytes", Where.PROSE, standard=r"\.octets\(|from_octets\("),
    Retired("he him his himself", "it, its, itself", Where.PROSE),
    Retired("she hers herself", "it, its, itself", Where.PROSE),
    Retired("whoever whomever whom", "the caller, the thread, the peer that", Where.PROSE),
    Retired("nobody somebody everybody anybody", "no thread, a peer, all", Where.PROSE),
)

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = re.compile(r"(?<![A-Za-z])[A-Za-z]+(?![A-Za-z])")
_RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<text>b?c?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*")
      | b?'(?:\\[^\n]{1,9}?|[^'\\\n])'
      | (?P<name>\.?\b[A-Za-z_]\w*\b\(?)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Found:
    """One occurrence of a retired word."""

    word: str
    place: str  # `src/urds/verbs/mr.py`
    line: int
    name: str  # the name, or the line of prose, in which the word stands
    say: str

    def __str__(self) -> str:
        """Return `file:line: word: where it stands (what to say instead)`."""
        return f"{self.place}:{self.line}: {self.word}: {self.name} ({self.say})"


@dataclass(frozen=True, slots=True)
class _Piece:
    line: int
    text: str
    is_name: bool


def occurrences(paths: Sequence[str] = (*CODE, *PROSE)) -> Iterator[Found]:
    """Yield each retired word below `paths`, which are relative to the root of the tree."""
    for path in _files(paths):
        place = path.relative_to(ROOT).as_posix()
        yield from occurrences_in(path.read_text("utf-8"), place)


def occurrences_in(text: str, place: str) -> Iterator[Found]:
    """Yield each retired word of one file."""
    names, prose = _lists(place)
    if not _may_hold(f"{Path(place).stem} {text}", names):
        return
    for piece in [_Piece(1, Path(place).stem, True), *_pieces(text, Path(place).suffix)]:
        if piece.is_name:
            yield from _in_name(piece, place, names)
        else:
            for number, line in enumerate(piece.text.splitlines(), start=piece.line):
                for match in _WORD.finditer(line):
                    retired = prose.get(match[0].lower())
                    if retired and not _is_standard(retired, line, match):
                        yield Found(match[0].lower(), place, number, line.strip(), retired.say)


def bucket(place: str) -> str:
    """Return the folder that a file is counted in: a system of ours, a crate, or a top folder."""
    parts = place.split("/")
    deep = {"src": 3, "native": 3}.get(parts[0], 1)
    return "/".join(parts[:deep]) if len(parts) > deep else "/".join(parts[:-1]) or place


def counts(found: Iterator[Found]) -> dict[str, Counter[str]]:
    """Return how often each word stands in each bucket."""
    table: dict[str, Counter[str]] = {}
    for item in found:
        table.setdefault(bucket(item.place), Counter())[item.word] += 1
    return table


def pending() -> dict[str, dict[str, int]]:
    """Return how often a word may still stand in a bucket."""
    return tomllib.loads(PENDING.read_text("utf-8"))


def write_pending(table: dict[str, Counter[str]]) -> None:
    """Write the table of words that wait to be renamed."""
    lines = [
        "# Retired words that still stand, by folder: the counts may fall, never rise.",
        "# `python -m tests.health.words --lower` writes them anew.",
    ]
    for folder in sorted(table):
        lines += ["", f'["{folder}"]']
        lines += [f"{word} = {count}" for word, count in sorted(table[folder].items()) if count]
    PENDING.write_text("\n".join(lines) + "\n", "utf-8")


def lowered(
    now: dict[str, Counter[str]], then: dict[str, dict[str, int]]
) -> dict[str, Counter[str]]:
    """Return the smaller of both counts, for each folder and word."""
    both = {
        folder: Counter({word: min(allowed, now[folder][word]) for word, allowed in words.items()})
        for folder, words in then.items()
        if folder in now
    }
    return {folder: words for folder, words in both.items() if words.total()}


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for name in paths:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            place = path.relative_to(ROOT).as_posix()
            checked = "/target/" not in place and place not in NOT_CHECKED
            if checked and path.suffix in {".py", ".pyi", ".rs", ".md"}:
                yield path


def _lists(place: str) -> tuple[dict[str, Retired], dict[str, Retired]]:
    names: dict[str, Retired] = {}
    prose: dict[str, Retired] = {}
    for retired in RETIRED:
        if retired.only and not place.startswith(tuple(f"{top}/" for top in retired.only)):
            continue
        for word in retired.words.split():
            if word.startswith("octet") and place.startswith(WIRE_DOCUMENTS):
                continue
            names[word] = retired
            if retired.where is Where.PROSE:
                prose[word] = retired
    return names, prose


def _may_hold(text: str, names: dict[str, Retired]) -> bool:
    """Tell whether any part of any word is retired: most files are done with that."""
    parts = {part.lower() for part in set(_PART.findall(text))}
    return any(word in parts or ("_" in word and word in text.lower()) for word in names)


def _in_name(piece: _Piece, place: str, names: dict[str, Retired]) -> Iterator[Found]:
    name = piece.text.strip(".(")
    for word in sorted({name.strip("_").lower(), *map(str.lower, _PART.findall(name))}):
        retired = names.get(word)
        if retired is None or (retired.standard and re.search(retired.standard, piece.text)):
            continue
        if retired.where is not Where.NAME or word == name.strip("_").lower():
            yield Found(word, place, piece.line, name, retired.say)


def _is_standard(retired: Retired, line: str, match: re.Match[str]) -> bool:
    if not retired.standard:
        return False
    return any(
        phrase.start() <= match.start() and match.end() <= phrase.end()
        for phrase in re.finditer(retired.standard, line, re.IGNORECASE)
    )


def _pieces(text: str, suffix: str) -> Iterator[_Piece]:
    if suffix == ".md":
        yield _Piece(1, text, False)
    elif suffix == ".rs":
        line, end = 1, 0
        for match in _RUST.finditer(text):
            line += text.count("\n", end, match.start())
            end = match.start()
            if match["name"] or match["comment"] or match["text"]:
                yield _Piece(line, match[0], bool(match["name"]))
    else:
        yield from _python_pieces(text)


def _python_pieces(text: str) -> Iterator[_Piece]:
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    before = ""
    for token, after in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == tokenize.NAME:  # `.name(`, as in Rust: a standard may have the method
            name = "." * (before == ".") + token.string + "(" * (after.string == "(")
            yield _Piece(token.start[0], name, is_name=True)
        elif token.type == tokenize.COMMENT:
            yield _Piece(token.start[0], token.string, is_name=False)
        before = token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _Piece(node.lineno, node.value, False)


def main() -> int:
    """List occurrences, or lower the table; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.health.words", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders, e.g. src/urds/verbs; all")
    parser.add_argument("--word", action="append", help="list these words alone")
    parser.add_argument("--count", action="store_true", help="print counts by folder alone")
    parser.add_argument(
        "--lower", action="store_true", help=f"write lower counts to {PENDING.name}"
    )
    options = parser.parse_args()
    if options.lower:
        write_pending(lowered(counts(occurrences()), pending()))
        return 0
    paths = [Path(path).resolve().relative_to(ROOT).as_posix() for path in options.paths]
    found = [
        item
        for item in occurrences(paths or (*CODE, *PROSE))
        if not options.word or item.word in options.word
    ]
    if options.count:
        for folder, words in sorted(counts(iter(found)).items()):
            listed = ", ".join(f"{word} {count}" for word, count in words.most_common())
            sys.stdout.write(f"{folder}: {words.total()}: {listed}\n")
    else:
        sys.stdout.writelines(f"{item}\n" for item in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
