"""One picture of the network's figures."""

from __future__ import annotations

from pathlib import Path

from bench.net.neighbours import Neighbours
from bench.net.tiers import HOWS, TierFigures
from bench.rig import p50

BLUE, GREY = "#0b57d0", "#9aa0a6"
WIDTH = 0.4  # of a bar


def draw(figures: dict[str, TierFigures], beside: Neighbours, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(16, 3.6))
    names = [f"{tier}\n{how}" for tier in figures for how in HOWS]
    speeds = [p50(each.speed.proxied[how]) for each in figures.values() for how in HOWS]
    direct = [p50(each.speed.direct[how]) for each in figures.values() for how in HOWS]
    places = range(len(names))
    axes[0].bar([place - WIDTH / 2 for place in places], direct, WIDTH, color=GREY, label="direct")
    axes[0].bar([place + WIDTH / 2 for place in places], speeds, WIDTH, color=BLUE, label="from a sandbox")
    axes[0].set(title="one download", ylabel="MB/s", yscale="log", ylim=(10, 30_000))
    axes[0].set_xticks(list(places), names)
    for tier, each in figures.items():
        _shares(axes[1], each.latency.proxied["tunnel"], f"{tier}, tunnel")
    _shares(axes[1], figures["runc"].latency.direct["tunnel"], "direct", color=GREY)
    axes[1].set(title="a small request", xlabel="ms", ylabel="share of requests", xscale="log", ylim=(0, 1))
    _shares(axes[2], beside.idle_ms, "nobody downloads", color=GREY)
    _shares(axes[2], beside.beside_ms, "others download", color=BLUE)
    axes[2].set(
        title="echo in another sandbox", xlabel="ms", ylabel="share of commands", xscale="log", ylim=(0, 1)
    )
    seconds = [beside.seconds * number / len(beside.rss_mib) for number in range(len(beside.rss_mib))]
    axes[3].plot(seconds, beside.rss_mib, color=BLUE, label="server")
    axes[3].set(
        title="memory while they download", xlabel="s", ylabel="MiB", ylim=(0, 1.4 * max(beside.rss_mib))
    )
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.legend(loc="upper right" if panel is axes[0] else "lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _shares(panel: object, samples: list[float], label: str, color: str | None = None) -> None:
    ordered = sorted(samples)
    heights = [(number + 1) / len(ordered) for number in range(len(ordered))]
    panel.plot(ordered, heights, label=label, color=color)  # type: ignore[attr-defined]
