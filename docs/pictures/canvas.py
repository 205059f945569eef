"""A small SVG canvas for the pictures of the documentation.

It knows two colour schemes and estimates how wide texts are, so that it can refuse a picture in which a text
crosses a border, a line or another text. Estimates are for wide fonts: narrower ones leave more room.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from xml.sax.saxutils import escape

# Pixels. The pictures are as wide as a README's column on GitHub, so that they are shown at 100 %.
WIDTH = 840
MARGIN = 16
INNER = WIDTH - 2 * MARGIN
CENTRE = WIDTH / 2

SANS = '-apple-system, BlinkMacSystemFont, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif'
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

# name: in light mode, in dark mode
COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "card": ("#f6f8fa", "#161b22"),
    "edge": ("#d1d9e0", "#3d444d"),
    "ink": ("#1f2328", "#f0f6fc"),
    "grey": ("#59636e", "#9198a1"),
    "sand": ("#9a6700", "#e3b341"),
    "blue": ("#0969da", "#58a6ff"),
    "green": ("#1a7f37", "#3fb950"),
    "violet": ("#8250df", "#bc8cff"),
}
TINT_OPACITY = 0.12

# Pixels at 100 %, and whether it is bold.
STYLES = {"headline": (16, True), "title": (14, True), "strong": (13, True), "small": (12, False)}
CODE_SIZES = {"headline": 15, "title": 13, "strong": 12, "small": 12}

# Parts of the font size that a character takes in a wide font (DejaVu Sans, SF Mono).
CODE_WIDTH = 0.62
SHARES = {
    **dict.fromkeys("ijlI.,:;'| /·", 0.34),
    **dict.fromkeys("frt()[]-", 0.41),
    **dict.fromkeys("mwMW…→", 0.99),
}
CAPITAL, OTHER = 0.72, 0.61
BOLD = 1.12
ASCENT, DESCENT = 0.78, 0.22
HEAD = 8.0  # pixels: the length of an arrow's head, and its width


@dataclass(frozen=True)
class Area:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


def text_width(text: str, style: str) -> float:
    """Pixels that ``text`` takes at most; parts in backquotes are code."""
    size, bold = STYLES[style]
    total = 0.0
    for index, part in enumerate(text.split("`")):
        if index % 2:
            total += len(part) * CODE_WIDTH * CODE_SIZES[style]
        else:
            total += (
                sum(SHARES.get(one, CAPITAL if one.isupper() else OTHER) for one in part)
                * size
                * (BOLD if bold else 1)
            )
    return total


class Canvas:
    """Draws in the order of the calls. ``svg`` checks the whole and returns it."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self._height = height
        self._words = title, description
        self._elements: list[str] = []
        self._texts: list[tuple[str, Area]] = []
        self._borders: list[Area] = []
        # With how many elements were drawn before: what is opaque covers only what is behind it.
        self._segments: list[tuple[int, Area]] = []
        self._covers: list[tuple[int, Area]] = []
        self.box(0.5, 0.5, WIDTH - 1, height - 1, "paper", radius=12)

    def box(self, x: float, y: float, width: float, height: float, look: str, *, radius: float = 8) -> None:
        """An opaque box. ``look``: classes of the style sheet, as in "tint blue" or "card dashed"."""
        area = Area(x, y, x + width, y + height)
        self._borders.append(area)
        self._covers.append((len(self._elements), area))
        if look.startswith("tint"):
            self._rectangle(area, "cover", radius)
        self._rectangle(area, look, radius)

    def _rectangle(self, area: Area, look: str, radius: float) -> None:
        width, height = area.right - area.left, area.bottom - area.top
        place = f'x="{area.left:g}" y="{area.top:g}" width="{width:g}" height="{height:g}"'
        self._elements.append(f'<rect {place} rx="{radius:g}" class="{look}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        style: str = "small",
        *,
        colour: str = "ink",
        anchor: str = "start",
        backed: bool = False,
    ) -> None:
        """``y`` is the base line. Parts in backquotes are code. ``backed``: it covers the lines behind it."""
        size, _ = STYLES[style]
        width = text_width(text, style)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        area = Area(left, y - size * ASCENT, left + width, y + size * DESCENT)
        if backed:
            self._covers.append((len(self._elements), area))
            around = Area(area.left - 3, area.top - 2, area.right + 3, area.bottom + 2)
            self._rectangle(around, "cover", 0)
        self._texts.append((text, area))
        parts = (
            f'<tspan class="code-{style}">{escape(part)}</tspan>' if index % 2 else escape(part)
            for index, part in enumerate(text.split("`"))
        )
        look = f'text-anchor="{anchor}" class="{style} {colour}"'
        self._elements.append(f'<text x="{x:g}" y="{y:g}" {look}>{"".join(parts)}</text>')

    def lines(
        self, x: float, y: float, texts: list[str], *, anchor: str = "start", pitch: float = 17
    ) -> None:
        """Several lines of small text; ``y`` is the base line of the first."""
        for index, text in enumerate(texts):
            self.text(x, y + index * pitch, text, anchor=anchor)

    def line(
        self, *points: tuple[float, float], colour: str = "grey", look: str = "plain", arrow: bool = False
    ) -> None:
        """A line along ``points``, level or upright in every part; ``arrow``: with a head at its end."""
        for (x1, y1), (x2, y2) in pairwise(points):
            assert x1 == x2 or y1 == y2, f"from {x1}, {y1} to {x2}, {y2} is aslant"
            area = Area(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
            self._segments.append((len(self._elements), area))
        (x1, y1), (x, y) = points[-2:]
        right, down = (x > x1) - (x < x1), (y > y1) - (y < y1)
        end = (x - right * HEAD, y - down * HEAD) if arrow else (x, y)
        path = " ".join(f"{a:g},{b:g}" for a, b in (*points[:-1], end))
        self._elements.append(f'<polyline points="{path}" class="line {colour} {look}"/>')
        if arrow:
            half = HEAD / 2
            corners = ((x, y), (end[0] - down * half, end[1] + right * half))
            head = (*corners, (end[0] + down * half, end[1] - right * half))
            path = " ".join(f"{a:g},{b:g}" for a, b in head)
            self._elements.append(f'<polygon points="{path}" class="solid {colour}"/>')

    def dot(self, x: float, y: float, number: int, colour: str) -> None:
        """A step's number in a disc."""
        self._elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" class="solid {colour}"/>')
        self._elements.append(
            f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle" class="number">{number}</text>'
        )

    def svg(self) -> str:
        self._check()
        title, description = (escape(words) for words in self._words)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self._height}" '
            f'viewBox="0 0 {WIDTH} {self._height}" role="img" aria-labelledby="title desc">'
        )
        words = [f'<title id="title">{title}</title>', f'<desc id="desc">{description}</desc>']
        return "\n".join([head, *words, f"<style>\n{_style_sheet()}\n</style>", *self._elements, "</svg>\n"])

    def _check(self) -> None:
        for text, area in self._texts:
            covers = [order for order, cover in self._covers if cover.holds(area)]
            for border in self._borders:
                assert border.holds(area) or not border.meets(area), (
                    f"{text!r} crosses the border of {border}"
                )
            for order, line in self._segments:
                assert order < max(covers) or not area.meets(line), f"{text!r} is crossed by the line {line}"
        for (one, here), (other, there) in combinations(self._texts, 2):
            assert not here.meets(there), f"{one!r} and {other!r} overlap"


def _style_sheet() -> str:
    sizes = [
        f".{name} {{ font-size: {size}px; font-weight: {600 if bold else 400}; }} "
        f".code-{name} {{ font-family: {MONO}; font-size: {CODE_SIZES[name]}px; }}"
        for name, (size, bold) in STYLES.items()
    ]
    shared = [
        f"text {{ font-family: {SANS}; }}",
        *sizes,
        ".number { font-size: 12px; font-weight: 600; }",
        f".tint {{ fill-opacity: {TINT_OPACITY}; }} .line {{ fill: none; stroke-width: 1.5; }}",
        ".dashed { stroke-dasharray: 5 4; } .thick { stroke-width: 2.5; }",
    ]
    dark = "\n".join(f"  {rule}" for rule in _colours(1))
    return "\n".join([*shared, *_colours(0), f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"])


def _colours(scheme: int) -> list[str]:
    tone = {name: pair[scheme] for name, pair in COLOURS.items()}
    rules = [
        f".paper {{ fill: {tone['paper']}; stroke: {tone['edge']}; }}",
        f".card {{ fill: {tone['card']}; stroke: {tone['edge']}; }}",
        f".cover {{ fill: {tone['paper']}; }} .number {{ fill: {tone['paper']}; }}",
    ]
    for name in ("ink", "edge", "grey", "sand", "blue", "green", "violet"):
        colour = tone[name]
        rules.append(
            f"text.{name}, .solid.{name} {{ fill: {colour}; }} .line.{name} {{ stroke: {colour}; }} "
            f".tint.{name} {{ fill: {colour}; stroke: {colour}; }}"
        )
    return rules
