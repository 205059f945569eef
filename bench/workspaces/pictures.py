"""One picture of the figures of workspaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.rig import p50
from bench.workspaces.measuring import STEP, Figures

if TYPE_CHECKING:  # it is installed for benchmarks alone
    from matplotlib.axes import Axes

BLUE, GREY, GREEN = "#0b57d0", "#9aa0a6", "#188038"


def draw(figures: Figures, path: Path) -> None:
    """A panel for each part that was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = {_tree: figures.snapshot, _line: figures.line_create, _creates: figures.create}
    panels = [panel for panel, samples in parts.items() if samples]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.8), squeeze=False)
    for panel, axis in zip(panels, axes[0], strict=True):
        panel(figures, axis)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _tree(figures: Figures, axis: Axes) -> None:
    ways = {"snapshot": p50(figures.snapshot), "restore": p50(figures.restore), **figures.peers}
    colors = [BLUE if name in ("snapshot", "restore") else GREY for name in ways]
    axis.barh(list(ways), list(ways.values()), color=colors)
    axis.invert_yaxis()
    axis.set(
        title=f"{figures.megabytes} MB in {figures.files:,} files", xlabel="ms (logarithmic)", xscale="log"
    )
    for place, took in enumerate(ways.values()):
        axis.annotate(f" {took:,.0f}", (took, place), va="center")
    axis.set_xlim(right=max(ways.values()) * 6)


def _line(figures: Figures, axis: Axes) -> None:
    numbers = [STEP * (place + 1) for place in range(len(figures.line_create))]
    axis.plot(numbers, figures.line_create, color=BLUE, label="create")
    axis.plot(numbers, figures.line_delete, color=GREEN, label="delete")
    axis.set(title="a long line of snapshots", xlabel="snapshots", ylabel="ms, median", ylim=(0, None))
    axis.legend()


def _creates(figures: Figures, axis: Axes) -> None:
    steps = {
        "create, Docker volume": figures.create,
        "create, btrfs": figures.btrfs_create,
        "create with files": figures.swapped_create,
        "... snapshot's first use": figures.copied_create,
        "create, first output": figures.first_output,
        "resume, first output": figures.resumed_output,
    }
    axis.boxplot(list(steps.values()), orientation="horizontal", showfliers=False)
    axis.set_yticks(range(1, len(steps) + 1), list(steps))
    axis.invert_yaxis()
    axis.set(title="from the pool", xlabel="ms", xlim=(0, None))
