"""Tables and charts as data: two more forms of a value, ``e2b/data`` and ``e2b/chart``, as E2B calls them.

A table of pandas is its columns. A figure of Matplotlib is what it shows: lines, points, bars and pies, with
its titles, labels and ticks. Everything else is of the type ``unknown``. What is too large to be worth
sending twice has no such form, and neither has what cannot be read: table and picture are always there.

An extension of IPython. It imports neither pandas nor Matplotlib before a program does.
"""

from __future__ import annotations

import datetime
import math
import re
import sys
from contextlib import suppress
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

# Cells of a table, or points and bars of a figure.
MAX_ELEMENTS = 10_000
# "Speed (km/h)" and "Speed [km/h]".
UNIT = re.compile(r"\s\(([^()]+)\)|\[([^\[\]]+)\]")


def load_ipython_extension(shell: Any) -> None:
    for form in (TableForm, ChartForm):
        shell.display_formatter.formatters[form.media_type] = form(parent=shell.display_formatter)


class Form(BaseFormatter):
    """``kinds``: module and name of the classes that have this form."""

    _return_type = dict
    kinds: tuple[tuple[str, str], ...]

    def __call__(self, value: Any) -> dict[str, Any] | None:
        for module, name in self.kinds:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and isinstance(value, kind):
                # Whatever a program has made of it: its other forms are shown.
                with suppress(Exception):
                    return self.of(value)
        return None

    def of(self, value: Any) -> dict[str, Any] | None:
        raise NotImplementedError


class TableForm(Form):
    media_type = "e2b/data"
    format_type = Unicode(media_type)
    print_method = ObjectName("_repr_e2b_data_")
    kinds = (("pandas", "DataFrame"),)

    def of(self, value: Any) -> dict[str, Any] | None:
        if value.size > MAX_ELEMENTS:
            return None
        return {
            str(name): [plain(cell) for cell in value.iloc[:, at].tolist()]
            for at, name in enumerate(value.columns)
        }


class ChartForm(Form):
    media_type = "e2b/chart"
    format_type = Unicode(media_type)
    print_method = ObjectName("_repr_e2b_chart_")
    kinds = (("matplotlib.figure", "Figure"),)

    def of(self, value: Any) -> dict[str, Any] | None:
        charts = [
            chart_of(axes) for axes in value.axes if axes.has_data() and axes.get_label() != "<colorbar>"
        ]
        if not charts or sum(map(size_of, charts)) > MAX_ELEMENTS:
            return None
        if len(charts) == 1:
            return charts[0]
        title = getattr(value, "_suptitle", None)
        return {
            "type": "superchart",
            "title": None if title is None else title.get_text() or None,
            "elements": charts,
        }


def size_of(chart: dict[str, Any]) -> int:
    return sum(len(each.get("points", (1,))) for each in chart["elements"])


def plain(value: Any) -> Any:
    """As JSON has it: a number, a text, true, false or null."""
    if hasattr(value, "dtype"):  # of NumPy; finer times would become numbers
        value = (value.astype("datetime64[us]") if value.dtype.kind == "M" else value).item()
    if hasattr(value, "to_timestamp"):  # a period of pandas
        value = value.to_timestamp()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.time)):
        text = value.isoformat()
        return None if text == "NaT" else text
    text = str(value)
    return None if text in ("NaT", "<NA>") else text


# --- charts -------------------------------------------------------------------------------------


def chart_of(axes: Any) -> dict[str, Any]:
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    parts = {
        "line": list(axes.lines),
        "scatter": [each for each in axes.collections if isinstance(each, PathCollection)],
        "bar": bars,
        "pie": [each for each in axes.patches if isinstance(each, Wedge)],
    }
    drawn = len(axes.lines) + len(axes.collections) + len(axes.patches) + len(axes.images)
    within = {name: len(some) for name, some in parts.items()} | {"bar": sum(map(len, bars))}
    kind = next((name for name, count in within.items() if count and count == drawn), "unknown")
    if kind == "line" and any(is_box(line) for line in axes.lines):
        kind = "unknown"  # of a box plot, whose whiskers are lines too
    chart = {"type": kind, "title": axes.get_title() or None, "elements": []}
    if kind == "pie":
        return chart | {"elements": [wedge(each) for each in parts["pie"]]}
    if kind == "bar":
        return chart | bar_chart(axes, bars)
    chart |= labels_of(axes.get_xlabel(), axes.get_ylabel())
    if kind in ("line", "scatter"):
        chart |= scale_of(axes.xaxis, "x") | scale_of(axes.yaxis, "y")
        points = line_points if kind == "line" else scatter_points
        chart["elements"] = [points(axes, each, number) for number, each in enumerate(parts[kind])]
    return chart


def is_box(line: Any) -> bool:
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == 5 and (xs[0], ys[0]) == (xs[4], ys[4]) and len(set(xs)) == len(set(ys)) == 2


def labels_of(x: str, y: str) -> dict[str, Any]:
    found = {}
    for name, text in (("x", x), ("y", y)):
        unit = UNIT.search(text)
        found |= {f"{name}_label": text or None, f"{name}_unit": unit and (unit[1] or unit[2])}
    return found


def is_of_dates(axis: Any) -> bool:
    from matplotlib.dates import AutoDateFormatter, ConciseDateFormatter, DateFormatter

    kinds = (AutoDateFormatter, ConciseDateFormatter, DateFormatter)
    return isinstance(axis.get_major_formatter(), kinds)


def frequency(axis: Any) -> Any:
    """Of the periods that pandas has put on an axis, by their numbers."""
    formatter = axis.get_major_formatter()
    return formatter.freq if type(formatter).__name__ == "TimeSeries_DateFormatter" else None


def scale_of(axis: Any, name: str) -> dict[str, Any]:
    if is_of_dates(axis) or frequency(axis) is not None:
        scale = "datetime"
    elif type(axis.get_major_formatter()).__module__ == "matplotlib.category":
        scale = "categorical"
    else:
        scale = axis.get_scale()
    ticks = [at_axis(axis, tick) for tick in axis.get_majorticklocs()]
    texts = [label.get_text() for label in axis.get_majorticklabels()]
    return {f"{name}_ticks": ticks, f"{name}_tick_labels": texts, f"{name}_scale": scale}


def at_axis(axis: Any, given: Any) -> Any:
    """A place on an axis. One in time is a number to Matplotlib, and to pandas."""
    value = plain(given)
    if not isinstance(value, (int, float)):
        return value
    if is_of_dates(axis):
        from matplotlib.dates import num2date

        return num2date(value).replace(tzinfo=None).isoformat()
    if (step := frequency(axis)) is not None:
        from pandas import Period

        return Period(ordinal=int(value), freq=step).to_timestamp().isoformat()
    return value


def pairs(axes: Any, xs: Any, ys: Any) -> list[list[Any]]:
    return [[at_axis(axes.xaxis, x), at_axis(axes.yaxis, y)] for x, y in zip(xs, ys, strict=True)]


def named(label: str, number: int, what: str) -> str:
    """Matplotlib's own names begin with an underscore."""
    return f"{what} {number}" if label.startswith("_") else label


def line_points(axes: Any, line: Any, number: int) -> dict[str, Any]:
    # As they were given: converted, dates and categories would be numbers.
    points = pairs(axes, line.get_xdata(orig=True), line.get_ydata(orig=True))
    return {"label": named(str(line.get_label()), number, "Line"), "points": points}


def masked(offset: Any) -> bool:
    """Whether a point is not drawn, because one of its numbers is none."""
    mask = getattr(offset, "mask", None)
    return mask is not None and bool(mask.any())


def scatter_points(axes: Any, collection: Any, number: int) -> dict[str, Any]:
    drawn = [offset for offset in collection.get_offsets() if not masked(offset)]
    return {
        "label": named(str(collection.get_label()), number, "Points"),
        "points": pairs(axes, [x for x, _ in drawn], [y for _, y in drawn]),
    }


def wedge(each: Any) -> dict[str, Any]:
    angle = abs(round(float(each.theta2) - float(each.theta1), 4))
    return {"label": str(each.get_label()), "angle": angle, "radius": float(each.r)}


def bar_chart(axes: Any, containers: list[Any]) -> dict[str, Any]:
    """``x`` is where the bars stand, also if they lie."""
    lie = containers[0].orientation == "horizontal"
    axis, labels = (axes.yaxis, (axes.get_ylabel(), axes.get_xlabel())) if lie else (axes.xaxis, None)
    elements = []
    for number, container in enumerate(containers):
        group = named(str(container.get_label()), number, "Group")
        for bar in container:
            begin, width, value = (
                (bar.get_y(), bar.get_height(), bar.get_width())
                if lie
                else (bar.get_x(), bar.get_width(), bar.get_height())
            )
            label = place_of(axis, float(begin), float(begin) + float(width))
            elements.append({"label": label, "group": group, "value": plain(value)})
    found = labels_of(*(labels or (axes.get_xlabel(), axes.get_ylabel())))
    return found | {"elements": elements}


def place_of(axis: Any, begin: float, end: float) -> str:
    """The text at the tick of a bar, or the bar's middle."""
    from matplotlib.ticker import ScalarFormatter

    middle = (begin + end) / 2
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    where, label = min(ticks, key=lambda each: abs(each[0] - middle), default=(math.inf, None))
    # Bars of several groups stand beside their tick; those of a histogram between ticks.
    reach = (end - begin) / 10 if isinstance(axis.get_major_formatter(), ScalarFormatter) else 0.5
    if label is not None and abs(where - middle) <= reach + 1e-9 and label.get_text():
        return str(label.get_text())
    return str(at_axis(axis, middle)) if is_of_dates(axis) else f"{middle:g}"
