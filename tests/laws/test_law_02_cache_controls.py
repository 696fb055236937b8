"""Laws 2 and 3 with every control: a batch, cached, writes what plain Python does row by row."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.generation.continuation import Continuation
from minigpt.generation.decode import Decoding, Row, continue_rows, stream
from minigpt.generation.sampling import Sampling, Uniforms
from minigpt.model.gpt import GPT
from tests.laws.choices import POSITIONS
from tests.plain_sampling import plain_probabilities

BLOCK_SIZE = 6
END = 10
TOKENS = [b"a", b"b", b"c", b"ab", b"ba", b"abc", b"\xe5", b"\xba\x8a", b" ", b"cab", b""]
V = len(TOKENS)


def model(position: str) -> GPT:
    torch.manual_seed(4)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=BLOCK_SIZE, position=position)
    gpt = GPT(config, V).double().eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return gpt


MODELS = {position: model(position) for position in POSITIONS}


@dataclass
class Written:
    ids: list[int]
    text: str
    reason: str
    logprobs: list[float]


def completes(before: bytes, token: bytes, text: bytes) -> bool:
    """Whether the text stands in what was there and the token, and ends inside the token."""
    return any((before + token)[: len(before) + n].endswith(text) for n in range(1, len(token) + 1))


def banned_by_ngrams(row: list[int], n: int) -> set[int]:
    """The tokens that stand after an earlier copy of the row's last n - 1."""
    begun = tuple(row[len(row) - n + 1 :])
    if len(row) < n:
        return set()
    grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
    return {gram[-1] for gram in grams if gram[:-1] == begun}


def changed(logits: list[float], prompt: list[int], new: list[int], d: Decoding) -> list[float]:
    """The logits after biases, penalties and bans, a token at a time."""
    s, row = d.sampling, prompt + new
    before, written = (b"".join(TOKENS[i] for i in ids) for ids in (row, new))
    again = banned_by_ngrams(row, s.no_repeat_ngram) if s.no_repeat_ngram else set[int]()

    def of(token: int) -> float:
        value = logits[token] + sum(bias for i, bias in s.logit_bias_ids if i == token)
        for text, bias in s.logit_bias:
            value += bias if completes(before, TOKENS[token], text.encode()) else 0
        ends = token in (d.end_id, *d.stop_ids) or any(
            completes(written, TOKENS[token], text.encode()) for text in d.stop
        )
        if ends and len(new) < d.min_new_tokens:
            return -math.inf
        if token == d.end_id:
            return value
        if token in row:
            value = value / s.repetition_penalty if value > 0 else value * s.repetition_penalty
        value -= s.frequency_penalty * new.count(token) + s.presence_penalty * (token in new)
        return -math.inf if token in again else value

    return [of(token) for token in range(V)]


def chosen(logits: list[float], s: Sampling, uniform: float) -> int:
    """The token at which the running sum of the probabilities passes the random number."""
    if s.temperature == 0:
        return max(range(V), key=lambda i: (logits[i], -i))
    running, shares = 0.0, plain_probabilities(logits, s)
    for token, share in enumerate(shares):
        running += share
        if share > 0 and running > uniform:
            return token
    return max(i for i in range(V) if shares[i] > 0)


def cut(written: bytes, stop: tuple[str, ...]) -> int | None:
    """Where the first stop text to be complete begins."""
    for end in range(1, len(written) + 1):
        starts = [end - len(t.encode()) for t in stop if written[:end].endswith(t.encode())]
        if starts:
            return min(starts)
    return None


def plain(gpt: GPT, row: Row, d: Decoding) -> Written:
    """One row: a full forward of its window for each token."""
    prompt, new, logprobs = list(row.ids), list[int](), list[float]()
    uniforms = Uniforms([(row.seed, row.sample)], torch.device("cpu"))
    reason, size = "length", None
    stride = d.context_stride or max(1, BLOCK_SIZE // 4)
    while len(new) < d.max_new_tokens:
        ids, start = prompt + new, 0
        while len(ids) - start > BLOCK_SIZE:
            start += stride
        with torch.no_grad():
            raw = gpt(torch.tensor([ids[start:]]))[0, -1]
        logits = changed(raw.tolist(), prompt, new, d)
        if max(logits) == -math.inf:
            reason = "banned"
            break
        uniform = 0.0 if d.sampling.temperature == 0 else float(uniforms.next())
        token = chosen(logits, d.sampling, uniform)
        if token in (d.end_id, *d.stop_ids):
            reason = "end" if token == d.end_id else "stop"
            break
        new.append(token)
        logprobs.append(float(raw.log_softmax(-1)[token]))
        size = cut(b"".join(TOKENS[i] for i in new), d.stop)
        if size is not None:
            reason = "stop"
            break
    written = b"".join(TOKENS[i] for i in new)[:size]
    while size is not None and new and len(b"".join(TOKENS[i] for i in new[:-1])) >= size:
        new.pop()
    return Written(new, written.decode("utf-8", "replace"), reason, logprobs[: len(new)])


biases = st.sampled_from([-math.inf, -2.5, 1.25, 4.0])
texts = st.sampled_from(["a", "ab", "bc", "cab", "aba", "床", " c"])
samplings = st.builds(
    Sampling,
    logit_bias_ids=st.lists(st.tuples(st.integers(0, END), biases), max_size=3).map(tuple),
    logit_bias=st.lists(st.tuples(texts, biases), max_size=2).map(tuple),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.75, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    no_repeat_ngram=st.none() | st.integers(1, 4),
    temperature=st.sampled_from([0.0, 1e-40, 0.7, 1.0, 3.0]),
    top_k=st.none() | st.integers(1, V + 2),
    top_p=st.none() | st.sampled_from([1e-9, 0.5171, 0.9173, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.0319, 0.317, 1.0]),
)
decodings = st.builds(
    Decoding,
    end_id=st.sampled_from([END, -1]),
    vocab_size=st.just(V),
    token_bytes=st.just(TOKENS),
    sampling=samplings,
    max_new_tokens=st.integers(0, 14),
    min_new_tokens=st.integers(0, 6),
    stop=st.lists(texts, max_size=2).map(tuple),
    stop_ids=st.lists(st.integers(0, END), max_size=1).map(tuple),
    context_stride=st.none() | st.integers(1, BLOCK_SIZE),
    use_cache=st.booleans(),
    logprobs=st.booleans(),
)
row_lists = st.lists(
    st.builds(
        Row,
        st.lists(st.integers(0, END), min_size=1, max_size=3 * BLOCK_SIZE),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)
NEVER = Decoding(end_id=-1, vocab_size=V, token_bytes=TOKENS)


def same(result: Continuation, expected: Written, *, logprobs: bool) -> None:
    assert (result.ids, result.text, result.reason) == (
        expected.ids, expected.text, expected.reason,
    )  # fmt: skip
    assert len(result.logprobs) == len(result.ids) * logprobs
    for got, wanted in zip(result.logprobs, expected.logprobs, strict=False):
        assert math.isclose(got, wanted, abs_tol=1e-9)


@settings(deadline=None, max_examples=150)
@given(row_lists, decodings, st.integers(1, 5), st.sampled_from(list(MODELS)))
@example(
    rows=[Row([0], 1)],
    decoding=replace(NEVER, sampling=Sampling(no_repeat_ngram=1), max_new_tokens=99),
    batch_size=1,
    position="learned",
)  # every token comes once, then none is left
def test_a_batch_writes_what_plain_python_writes_row_by_row(
    rows: list[Row], decoding: Decoding, batch_size: int, position: str
) -> None:
    gpt = MODELS[position]
    together = continue_rows(gpt, [(row, decoding) for row in rows], batch_size=batch_size)
    for row, result in zip(rows, together, strict=True):
        expected = plain(gpt, row, decoding)
        same(result, expected, logprobs=decoding.logprobs)
        streamed = Continuation(decoding)
        pieces = list(stream(gpt, row, decoding, streamed))
        assert "".join(pieces) == expected.text
        same(streamed, expected, logprobs=decoding.logprobs)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(row_lists, decodings), min_size=2, max_size=3))
def test_rows_of_unlike_settings_do_not_meet(jobs: list[tuple[list[Row], Decoding]]) -> None:
    rows = [(row, decoding) for some, decoding in jobs for row in some]
    results = continue_rows(MODELS["learned"], rows, batch_size=3)
    for (row, decoding), result in zip(rows, results, strict=True):
        same(result, plain(MODELS["learned"], row, decoding), logprobs=decoding.logprobs)
