"""A histogram as SVG, and the style of the pages it is on: nothing from outside, no scripts."""

from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 720, 180

#: How a page goes on after its title, in the light or dark of its reader's system. Rules of its own
#: follow, and </style>.
STYLE = """<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root { --paper: #fff; --ink: #1a1a1a; --soft: #595959; --line: #ddd; --bar: #4477aa }
@media (prefers-color-scheme: dark) {
:root { --paper: #161616; --ink: #eee; --soft: #aaa; --line: #444; --bar: #77aadd }
}
body { font: 16px/1.45 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink) }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem }
tr { border-bottom: 1px solid var(--line) }
small { color: var(--soft) }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem }
svg { width: 100%; height: auto } svg text { font-size: 12px; fill: var(--soft) }
rect { fill: var(--bar) } line { stroke: var(--soft) } .mark { stroke-dasharray: 4 3 }
"""


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
