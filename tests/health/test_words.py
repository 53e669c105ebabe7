"""Names and sentences use the words of the field: `tests.health.words` lists the retired ones."""

import pytest

from tests.health.words import bucket, counts, occurrences, occurrences_in, pending


def test_no_retired_word_stands_more_often_than_before() -> None:
    """`words_pending.toml` holds what is left; counts below it pass."""
    allowed = pending()
    now = counts(occurrences())
    more = [
        f"{folder}: {word} {count} times, not {allowed.get(folder, {}).get(word, 0)}; "
        f"see python -m tests.health.words --word {word}"
        for folder, words in sorted(now.items())
        for word, count in sorted(words.items())
        if count > allowed.get(folder, {}).get(word, 0)
    ]
    assert more == []


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        ("src/urds/rds/x.py", "class LaneMeeting: ...", ["lane"]),
        ("src/urds/rds/x.py", "def _chance(): ...", ["chance"]),
        ("src/urds/rds/x.py", "loss_chance = plane = guess = 0", []),
        ("src/urds/rds/x.py", "x = 0  # He waits.", ["he"]),
        ("src/urds/rds/x.py", 'print(f"{x} octets of nobody")', ["octets", "nobody"]),
        ("src/urds/rds/grave.py", "", ["grave"]),
        ("src/urds/rds/x.py", "x = itertools.repeat(b''); repeat = 0", ["repeat"]),
        ("src/urds/rds/x.py", 'x = "judge and refusal"', []),  # plain English in a sentence
        ("tests/x.py", "guest = judge", []),  # retired in the product alone
        ("native/crates/a/x.rs", "fn r(bell: &Bell) // \"vain\"", ["bell", "bell", "vain"]),
        ("native/crates/a/x.rs", "let x = address.octets();", []),  # of the standard library
        ("native/crates/a/x.rs", "x: &'a str = \"lane\"; c = '\"'; bury()", ["lane", "bury"]),
        ("docs/x.md", "Virtual lanes are InfiniBand's; a lane is not.", ["lane"]),
        ("docs/protocol/x.md", "48 octets", []),
    ],
)  # fmt: skip
def test_a_retired_word_is_found(place: str, text: str, words: list[str]) -> None:
    assert [found.word for found in occurrences_in(text, place)] == words


def test_an_occurrence_names_its_line_and_the_word_to_use() -> None:
    (found,) = occurrences_in('"""One.\n\nTwo lanes.\n"""\n', "src/urds/verbs/x.py")
    assert str(found) == "src/urds/verbs/x.py:3: lanes: Two lanes. (shm stream)"


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("src/urds/verbs/engine/keys.py", "src/urds/verbs"),
        ("src/urds/__init__.py", "src/urds"),
        ("native/crates/path/src/x.rs", "native/crates/path"),
        ("docs/a/b.md", "docs"),
        ("README.md", "README.md"),
    ],
)
def test_a_file_is_counted_in_the_folder_of_its_system(place: str, folder: str) -> None:
    assert bucket(place) == folder
