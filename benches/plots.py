"""Draw the tables of a report as SVG: bars with the lowest and the highest round as whiskers.

The same report gives the same bytes: no date, no random identifiers. Text stays text, which keeps
the files small and leaves the font to the reader.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peers.base import Kind
from results import BYTES, COUNT, MESSAGES_PER_S, NS, Line, Table

_SVG = {"svg.hashsalt": "urds", "svg.fonttype": "none"}
_STYLE = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
_OURS, _THEIRS = "#1b6ca8", "#b8bfc6"
_WIDTH_INCH, _BAR_INCH, _HEAD_INCH = 7.0, 0.2, 0.75
_COLUMNS = 2
_FILES = {
    "rates": (
        Kind.ONE_WAY,
        Kind.MEMORY_ONE_WAY,
        Kind.NODE_ONE_WAY,
        Kind.MANY_SENDERS,
        Kind.LOOP_ONE_WAY,
    ),
    "round_trips": (
        Kind.ROUND_TRIP,
        Kind.MEMORY_ROUND_TRIP,
        Kind.NODE_ROUND_TRIP,
        Kind.LOOP_ROUND_TRIP,
    ),
    "peers": (Kind.PEERS_RUNS, Kind.PEERS_ASKED),
}
_UNITS = {
    MESSAGES_PER_S: ("messages/s", 1.0),
    NS: ("us", 1000.0),
    BYTES: ("bytes", 1.0),
    COUNT: ("", 1.0),
}


def draw(tables: Iterable[Table], directory: Path) -> list[Path]:
    """Write one file per family of works that has figures; return them."""
    from matplotlib import rc_context

    drawn = []
    directory.mkdir(parents=True, exist_ok=True)
    for name, kinds in _FILES.items():
        values = {kind.value for kind in kinds}
        chosen = [table for table in tables if table.kind in values and _measured(table)]
        if chosen:
            with rc_context({**_SVG, **_STYLE}):
                drawn.append(_draw(chosen, directory / f"{name}.svg"))
    return drawn


def _draw(tables: Sequence[Table], path: Path) -> Path:
    from matplotlib.figure import Figure

    rows = -(-len(tables) // _COLUMNS)
    height = [
        _HEAD_INCH + _BAR_INCH * max(len(_measured(one)) for one in tables[start : start + 2])
        for start in range(0, len(tables), _COLUMNS)
    ]
    figure = Figure(figsize=(_WIDTH_INCH, sum(height)), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False, height_ratios=height)
    places = [place for row in axes for place in row]
    for place, table in zip(places, tables, strict=False):
        _draw_bars(place, table)
    for place in places[len(tables) :]:
        place.set_axis_off()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _draw_bars(axes: Any, table: Table) -> None:
    """Draw one table; Any, for the drawing library brings no types of its own for axes."""
    unit, scale = _UNITS[table.unit]
    lines = _measured(table)[::-1]
    medians = [(line.median or 0) / scale for line in lines]
    below = [((line.median or 0) - (line.lowest or 0)) / scale for line in lines]
    above = [((line.highest or 0) - (line.median or 0)) / scale for line in lines]
    axes.barh(
        range(len(lines)),
        medians,
        color=[_OURS if line.name.startswith("urds") else _THEIRS for line in lines],
        xerr=[below, above],
        error_kw={"elinewidth": 0.7, "capsize": 2, "ecolor": "#444444"},
    )
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_title(table.title, loc="left", fontsize=8, fontweight="bold")
    axes.set_xlabel(f"{unit}, {'less' if table.unit != MESSAGES_PER_S else 'more'} is better")
    axes.ticklabel_format(axis="x", style="plain")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.locator_params(axis="x", nbins=4)


def _measured(table: Table) -> list[Line]:
    return [line for line in table.lines if line.median is not None]
