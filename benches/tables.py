"""Tables for a terminal: aligned, a line of heading, a line per peer, notes below."""

from collections.abc import Callable

from results import BYTES, COUNT, MESSAGES_PER_S, Line, Table

_LABEL_MIN = 20
_Cell = Callable[[Line], str]


def render(table: Table) -> str:
    """Return a table as text, without a line feed at its end."""
    label_width = max(_LABEL_MIN, *(len(line.label) for line in table.lines))
    columns = _columns(table)
    heading = "".join(f"{name:>{width}}" for name, width, _ in columns)
    compares = any(line.ratio is not None for line in table.lines)
    heading += f"{'ratio':>9}" * compares
    rounds = f"{table.rounds} round{'s' * (table.rounds != 1)}"
    lines = [f"{table.title}  ({rounds}; {table.placement})"]
    lines.append(f"  {'':<{label_width}}{heading}  goal".rstrip())
    for line in table.lines:
        text = f"  {line.label:<{label_width}}"
        if line.median is None:
            lines.append(f"{text}  {line.problem}")
            continue
        text += "".join(f"{cell(line):>{width}}" for _, width, cell in columns)
        if compares:
            text += f"{'-' if line.ratio is None else f'{line.ratio:.2f}x':>9}"
        lines.append(f"{text}  {line.goal}".rstrip())
    if compares:
        lines.append(f"  ratio: the figure of {table.subject}, divided by this row's")
    lines += [f"  {line.label}: {line.note}" for line in table.lines if line.note]
    lines += [f"  {remark}" for remark in table.remarks]
    return "\n".join(lines)


def _columns(table: Table) -> list[tuple[str, int, _Cell]]:
    """Return the name, the width and the cells of each column of figures."""
    if table.unit in (BYTES, COUNT):
        return [(name, 12, _cell(name, 1, 0)) for name in ("median", "lowest", "highest")]
    processor = [("CPU us", 11, _cell("cpu_ns", 1000, 2))]
    if any(line.wake_ups is not None for line in table.lines):
        processor.append(("wake-ups", 10, _cell("wake_ups", 1, 3)))
    if table.unit == MESSAGES_PER_S:
        scale, digits, unit = 1, 0, "messages/s"
        last = ("MB/s", 10, lambda line: f"{(line.median or 0) * table.payload_bytes / 1e6:,.1f}")
    else:
        scale, digits, unit = 1000, 1, "us"
        last = ("p99 us", 10, _cell("p99_ns", 1000, 1))
    return [
        (unit, 12, _cell("median", scale, digits)),
        ("lowest", 12, _cell("lowest", scale, digits)),
        ("highest", 12, _cell("highest", scale, digits)),
        last,
        *processor,
    ]


def _cell(field: str, scale: int, digits: int) -> _Cell:
    """Return the text of one figure, or a dash where there is none."""

    def text(line: Line) -> str:
        value: float | None = getattr(line, field)
        return "-" if value is None else f"{value / scale:,.{digits}f}"

    return text
