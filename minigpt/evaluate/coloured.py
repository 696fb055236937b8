"""Tokens as HTML, each on a colour that says how surprising it was.

The colour is one of `len(EDGES) + 1` steps of one hue that differ in lightness, so that it can be
told apart whatever colours an eye sees. What can't be seen in a text is given a sign.
"""

import codecs
import html
import math
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

from minigpt.data.tokenizer import Tokenizer
from minigpt.evaluate.extremes import Excerpt

#: Bits of surprise at which the next colour begins.
EDGES = (0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0, 15.0)

END_SIGN = "∎"

_SIGNS = {code: chr(0x2400 + code) for code in range(32)} | {
    0x7F: "\u2421",
    ord("\n"): "↵\n",
    ord("\t"): "⇥\t",
    **{code: f"⟨U+{code:04X}⟩" for code in (0xFFFE, 0xFFFF)},
}

#: Unicode's categories of what is not seen: controls, formats (which may turn the direction of all
#: that follows), the ends of lines and paragraphs, and blanks of other widths.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")

_WITHOUT_BREAKS = {ord("\n"): "", ord("\t"): ""}


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """A token by itself, in words for a person: its text, or its bytes where that is no text."""
    if token == tokenizer.end_id:
        return "end of document"
    if token >= tokenizer.vocab_size or token in tokenizer.unused:
        return f"token {token}, which is in no text"
    content = tokenizer.token_bytes[token]
    if not content:
        return f"special token {token}"
    try:
        return f"“{signs(content.decode()).translate(_WITHOUT_BREAKS)}”"
    except UnicodeDecodeError:
        return f"bytes {content.hex(' ')}"


def signs(text: str) -> str:
    """A text with signs for what can't be seen."""
    return "".join(map(_sign, text))


@cache
def _sign(character: str) -> str:
    if ord(character) in _SIGNS:
        return _SIGNS[ord(character)]
    unseen = character != " " and unicodedata.category(character) in _UNSEEN
    return f"⟨U+{ord(character):04X}⟩" if unseen else character


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """What to show for each token of a text.

    A character that several tokens share stands with the one that completes it, the others show
    their bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    begun = False  # an excerpt may begin within a character
    for token in ids:
        content = tokenizer.token_bytes[token]
        begun = begun or not content or content[0] & 0xC0 != 0x80
        if token == tokenizer.end_id:
            yield END_SIGN
        else:
            yield (begun and signs(decoder.decode(content))) or f"⟨{content.hex(' ')}⟩"


def step(bits: float) -> int:
    """The colour's number for a surprise in bits."""
    return sum(bits >= edge for edge in EDGES)


def percent(logprob: float) -> str:
    """A probability in words, from its logarithm."""
    share = 100 * math.exp(logprob)
    return f"{share:.3g}%" if share >= 1e-300 else "next to 0%"


def coloured(tokenizer: Tokenizer, shown: Excerpt, marked: int | None = None) -> str:
    """An excerpt as HTML: the title of each token says what was expected in its place."""
    ids = shown.ids.tolist()
    spans: list[str] = []
    for place, piece in enumerate(pieces(tokenizer, ids)):
        logprob = float(shown.scores.logprobs[place])
        guess = int(shown.scores.guesses[place])
        bits = -logprob / math.log(2)
        title = f"{token_name(tokenizer, ids[place])}: {percent(logprob)}, {bits:.2f} bits"
        if guess == ids[place]:
            title += "; the best guess"
        else:
            best = percent(float(shown.scores.guess_logprobs[place]))
            title += f"; best guess {token_name(tokenizer, guess)}: {best}"
        kind = f"s{step(bits)}" + (" here" if place == marked else "")
        spans.append(f'<b class="{kind}" title="{html.escape(title)}">{html.escape(piece)}</b>')
    return f'<div class="text" dir="auto">{"".join(spans)}</div>'


def legend() -> str:
    """What the colours mean, as HTML."""
    cells = ""
    for number, low in enumerate((0.0, *EDGES)):
        bits, nats = f"{low:g} or more", f"{low * math.log(2):.1f} or more"
        if number < len(EDGES):
            bits, nats = f"{low:g} to {EDGES[number]:g}", f"{low * math.log(2):.1f} to "
            nats += f"{EDGES[number] * math.log(2):.1f}"
        chance = percent(-low * math.log(2))
        cells += (
            f'<div><b class="s{number}">&nbsp;{bits}&nbsp;</b>'
            f"<br><small>{nats} nats<br>{chance}{' and less' if number else ''}</small></div>"
        )
    return f'<div class="legend">{cells}</div>'
