"""Write docs/conformance.md: every rule of the source documents and its tests' outcomes.

    make docs

A rule is "failed" if a test that shows it failed when last run, else "passed" if one passed, else
"skipped" or "not run": not every machine runs every test. It is "not done" if no test shows it.
"""

import sys

from tools.rules import NOT_DONE, NOT_RUN, OUTCOMES, ROOT, Document, documents, shown, state

PAGE = ROOT / "docs" / "conformance.md"
HEAD = """\
# Conformance

Every rule of the source documents, in our words, with the tests that show it and what they
said when last run. This page is written by `make docs` from `tools/conformance/` and the
results of the last test runs; do not edit it by hand. "Not done" means that no test shows the rule:
the behaviour may be there, unproven, or may not be there at all. A note behind a rule says where
Linux or `urds` does otherwise on purpose, or which product the rule is for; its tests show it with
that note.
"""


def main() -> int:
    """Write the page and print one line per document."""
    results = shown()
    parts = [HEAD, _overview(results)]
    for document in documents():
        parts.append(_section(document, results))
        print(f"{document.title}: {_counts(document, results)}")
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    return 0


def _counts(document: Document, results: dict[str, dict[str, str]]) -> str:
    states = [state(rule, results) for rule in document.rules]
    kinds = [kind for kind in (*OUTCOMES, NOT_RUN, NOT_DONE) if kind in states]
    return ", ".join(f"{states.count(kind)} {kind}" for kind in kinds)


def _overview(results: dict[str, dict[str, str]]) -> str:
    lines = ["| document | rules | state |", "|---|---|---|"]
    lines += [
        f"| [{document.title}](#{document.key}) | {len(document.rules)} "
        f"| {_counts(document, results)} |"
        for document in documents()
    ]
    return "\n".join([*lines, ""])


def _section(document: Document, results: dict[str, dict[str, str]]) -> str:
    lines = [f'<a id="{document.key}"></a>', "", f"## {document.title}", "", document.about]
    section = ""
    for rule in document.rules:
        if rule.section != section:
            section = rule.section
            lines += ["", f"### {section}", "", "| rule | says | tests | last result |"]
            lines += ["|---|---|---|---|"]
        says = f"{rule.text} *{rule.note}*" if rule.note else rule.text
        tests = "<br>".join(_test(*one) for one in sorted(results.get(rule.id, {}).items()))
        lines.append(f"| `{rule.id}` | {says} | {tests} | {state(rule, results)} |")
    return "\n".join([*lines, ""])


def _test(test: str, outcome: str) -> str:
    """Return a test of the third column; the text shows an outcome other than "passed"."""
    return f"`{test}`" if outcome == "passed" else f"`{test}` ({outcome})"


if __name__ == "__main__":
    sys.exit(main())
