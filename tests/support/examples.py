"""How many examples hypothesis tries, for tests that want more or fewer than the usual 100."""

from hypothesis import settings

_USUAL = 100


def examples(usual: int) -> int:
    """Return `usual`, or ten times as many under `TEST_HYPOTHESIS=thorough`."""
    return usual * settings.default.max_examples // _USUAL
