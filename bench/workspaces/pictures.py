"""One picture of the figures of workspaces."""

from __future__ import annotations

from pathlib import Path

from bench.rig import p50
from bench.workspaces.measuring import STEP, Figures

BLUE, GREY, GREEN = "#0b57d0", "#9aa0a6", "#188038"


def draw(figures: Figures, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 3.8))
    ways = {"snapshot": p50(figures.snapshot), "restore": p50(figures.restore), **figures.peers}
    colors = [BLUE if name in ("snapshot", "restore") else GREY for name in ways]
    axes[0].barh(list(ways), list(ways.values()), color=colors)
    axes[0].invert_yaxis()
    axes[0].set(
        title=f"{figures.megabytes} MB in {figures.files:,} files", xlabel="ms (logarithmic)", xscale="log"
    )
    for place, took in enumerate(ways.values()):
        axes[0].annotate(f" {took:,.0f}", (took, place), va="center")
    axes[0].set_xlim(right=max(ways.values()) * 6)
    numbers = [STEP * (place + 1) for place in range(len(figures.line_create))]
    axes[1].plot(numbers, figures.line_create, color=BLUE, label="create")
    axes[1].plot(numbers, figures.line_delete, color=GREEN, label="delete")
    axes[1].set(title="a long line of snapshots", xlabel="snapshots", ylabel="ms, median", ylim=(0, None))
    axes[1].legend()
    steps = {
        "create": figures.create,
        "create with files": figures.swapped_create,
        "create, first output": figures.first_output,
        "resume, first output": figures.resumed_output,
    }
    axes[2].boxplot(list(steps.values()), orientation="horizontal", showfliers=False)
    axes[2].set_yticks(range(1, len(steps) + 1), list(steps))
    axes[2].invert_yaxis()
    axes[2].set(title="from the pool", xlabel="ms", xlim=(0, None))
    for panel in axes:
        panel.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
