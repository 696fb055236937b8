"""A histogram as SVG, for the pages that are written: nothing from outside them, no scripts.

The page gives `rect`, `line`, `line.mark` and `svg text` their colours.
"""

from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 720, 180


def histogram(
    counts: Sequence[int],
    edges: Sequence[float],
    *,
    label: str,
    shown: Callable[[float], str],
    mark: float,
) -> str:
    """Columns as high as `counts`, between `edges` (one more than counts), in even steps.

    A dashed line stands at `mark`, at an end of the picture where it lies beyond it. `label` says
    what is shown to whom cannot see it, and `shown` writes an edge.
    """
    low, high, most = edges[0], edges[-1], max(counts)
    width = WIDTH / len(counts)
    bars = "".join(
        f'<rect x="{number * width:.1f}" y="{HEIGHT - (height := HEIGHT * count / most):.1f}"'
        f' width="{width - 1:.1f}" height="{height:.1f}"><title>{shown(edges[number])} to'
        f" {shown(edges[number + 1])}: {count}</title></rect>"
        for number, count in enumerate(counts)
        if count
    )
    at = WIDTH * min(1.0, max(0.0, (mark - low) / (high - low)))
    ticks = "".join(
        f'<text x="{WIDTH * part:.0f}" y="{HEIGHT + 18}" text-anchor="{anchor}">'
        f"{shown(low + part * (high - low))}</text>"
        for part, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"),
                             (1, "end"))
    )  # fmt: skip
    return (
        f'<svg viewBox="0 -20 {WIDTH} {HEIGHT + 44}" role="img" aria-label="{label}">{bars}'
        f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{HEIGHT}"/>'
        f'<text x="2" y="-4">tallest: {most:,}</text>{ticks}</svg>'
    )
