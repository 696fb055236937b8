"""What is said of an examination: lines of text, JSON, and a page with plots."""

import base64
import html
import io
import math
import textwrap
from typing import Any, TypeAlias, cast

from minigpt.doctor.config import TITLE
from minigpt.doctor.finding import Check, Finding
from minigpt.output import beginning_of_page

Findings: TypeAlias = list[tuple[Check, Finding]]

WIDTH, INDENT = 100, 25

#: Heads in a layer whose entropy is written into the plot.
MOST_WRITTEN = 16


def lines(findings: Findings) -> str:
    """The last check: whether it holds, its figure, and what is to be said of it."""
    check, finding = findings[-1]
    heading = f"{finding.status:<8}{len(findings):>3}  {check.name:<12}{check.claim}"
    cause, meaning = _told(findings)
    said = [finding.figure, f"-> {cause}" if cause else "", meaning]
    return "\n".join([heading, *(_indented(text) for text in said if text)])


def _told(findings: Findings) -> tuple[str, str]:
    """Cause and meaning of what the last check has found; of several that failed, of the first."""
    check, finding = findings[-1]
    follows = finding.status == "failed" and first_failure(findings[:-1]) is not None
    if follows or finding.status not in ("failed", "warning"):
        return "", ""
    return finding.cause, check.meaning


def _indented(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def verdict(findings: Findings) -> str:
    """How many checks hold, and which to look at first if one does not."""
    count = dict.fromkeys(("ok", "failed", "warning", "skipped"), 0)
    for _, finding in findings:
        count[finding.status] += 1
    said = [f"{count['ok']} ok"]
    said += [f"{n} {status}" for status, n in count.items() if status != "ok" and n]
    text = ", ".join(said)
    first = first_failure(findings)
    return text if first is None else f"{text}; look at check {place(first, findings)} first"


def place(failure: tuple[Check, Finding], findings: Findings) -> str:
    """The number and the name of a check."""
    return f"{findings.index(failure) + 1} ({failure[0].name})"


def first_failure(findings: Findings) -> tuple[Check, Finding] | None:
    """The check that failed before any other, or None."""
    return next((each for each in findings if each[1].status == "failed"), None)


def as_data(findings: Findings) -> list[dict[str, Any]]:
    """The findings as plain data, in order; what is not finite is None, as JSON has no other."""
    return [
        {
            "check": check.name,
            "claim": check.claim,
            "status": finding.status,
            "figure": finding.figure,
            "value": _finite(finding.value),
            "bound": finding.bound,
            "cause": finding.cause,
            "meaning": check.meaning,
            "details": _finite(finding.details),
        }
        for check, finding in findings
    ]


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [_finite(each) for each in cast("list[Any]", value)]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def page(facts: dict[str, str], findings: Findings) -> str:
    """The whole examination as one HTML file, plots included."""
    table = "".join(f"<tr><th>{_text(k)}<td>{_text(v)}" for k, v in facts.items())
    rows = "".join(
        f'<tr class="{finding.status}"><td>{number}<td class="status">{_text(finding.status)}'
        f"<td><b>{_text(check.name)}</b>: {_text(check.claim)}"
        + "<p>{}</p><p class=cause>{}</p><p>{}</p>".format(
            _text(finding.figure), *map(_text, _told(findings[:number]))
        )
        for number, (check, finding) in enumerate(findings, start=1)
    )
    return beginning_of_page(TITLE) + _PAGE.format(
        verdict=_text(verdict(findings)),
        facts=table,
        rows=rows,
        plots="".join(_plots({check.name: finding.details for check, finding in findings})),
    )


_text = html.escape

_PAGE = """<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.4 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .6rem }}
tr {{ border-bottom: 1px solid #ddd }}
td p {{ margin: .2rem 0; color: #555 }} p:empty {{ display: none }}
.status, .cause {{ font-weight: bold }}
.ok .status {{ color: #17692e }} .failed .status {{ color: #b00020 }}
.warning .status {{ color: #8a5a00 }} .skipped .status {{ color: #666 }}
.failed {{ background: #fdecee }} .warning {{ background: #fff6e0 }}
img {{ max-width: 100% }}
</style>
<h1>Examination of a model</h1>
<p><b>{verdict}</b></p>
<table>{facts}</table>
<h2>Checks</h2>
<table>{rows}</table>
{plots}
</html>
"""


def _plots(details: dict[str, dict[str, Any]]) -> list[str]:
    """The plots that the findings have numbers for, each with a heading."""
    import matplotlib as mpl

    mpl.use("Agg")
    plots: list[str] = []
    if entropy := details.get("entropy", {}).get("entropy"):
        plots.append(
            _picture("Attention entropy: 0 reads one position, 1 all alike", _heads, entropy)
        )
    activations = details.get("norms", {}).get("activations")
    gradients = details.get("gradients", {}).get("gradients")
    if activations and gradients:
        plots.append(_picture("Sizes by layer", _sizes, activations, gradients))
    if lengths := details.get("length"):
        plots.append(_picture("One layer's attention as T doubles", _lengths, lengths))
    return plots


def _picture(heading: str, draw: Any, *numbers: Any) -> str:
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(9, 4), layout="constrained")
    draw(figure, *numbers)
    image = io.BytesIO()
    figure.savefig(image, dpi=110)
    plt.close(figure)
    data = base64.b64encode(image.getvalue()).decode()
    return (
        f'<h2>{_text(heading)}</h2><img alt="{_text(heading)}" src="data:image/png;base64,{data}">'
    )


def _heads(figure: Any, entropy: list[list[float]]) -> None:
    axes = figure.subplots()
    image = axes.imshow(entropy, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set(
        xlabel="head", ylabel="layer", xticks=range(len(entropy[0])), yticks=range(len(entropy))
    )
    figure.colorbar(image, label="share of the most")
    if len(entropy[0]) > MOST_WRITTEN:
        return
    for layer, heads in enumerate(entropy):
        for head, share in enumerate(heads):
            axes.text(head, layer, f"{share:.2f}", ha="center", va="center", color=_ink(share))


def _ink(share: float) -> str:
    return "black" if share > 0.6 else "white"


def _sizes(figure: Any, activations: list[float], gradients: list[float]) -> None:
    left, right = figure.subplots(1, 2)
    left.bar(range(len(activations)), activations)
    left.set(ylabel="root mean square", title="activations after the block")
    right.bar(range(len(gradients)), gradients)
    right.set(ylabel="norm", title="gradient of the block's parameters")
    for axes in (left, right):
        axes.set_xlabel("layer")
        axes.xaxis.get_major_locator().set_params(integer=True)


def _lengths(figure: Any, curves: dict[str, list[float]]) -> None:
    time, memory = figure.subplots(1, 2)
    T = curves["lengths"]
    for axes, unit, scale in ((time, "seconds", 1e3), (memory, "bytes", 1e-6)):
        for path in ("fast", "readable"):
            values = [scale * value for value in curves[f"{path}_{unit}"]]
            axes.loglog(T, values, "o-", label=path)
        last = scale * curves[f"readable_{unit}"][-1]
        axes.loglog(T, [last * (t / T[-1]) ** 2 for t in T], ":", color="grey", label="T²")
    if "loading_seconds" in curves:
        loading = [1e3 * value for value in curves["loading_seconds"]]
        time.loglog(T, loading, "s--", label="loading a row")
    time.set(xlabel="T", ylabel="ms, forward and backward", title="time")
    memory.set(xlabel="T", ylabel="MB kept for the backward pass", title="memory")
    for axes in (time, memory):
        axes.set_xticks(T, [str(t) for t in T])
        axes.minorticks_off()
        axes.legend()
        axes.grid(alpha=0.3)
