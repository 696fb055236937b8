"""Law 9, text: nothing is lost or changed between text, tokens and the training stream."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data.batches import IGNORED, make_batch, spans
from minigpt.data.preparation import prepare
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.data.tokenizer_training import train_tokenizer

SAMPLE = [f"The cat said: “{END}!” and the dog's 12 fleas left.\r\n", "猫と犬 🐈\t"] * 3
BYTE_LEVEL = {
    "bpe": train_tokenizer(TokenizerConfig(vocab_size=300), SAMPLE),
    "bytes": train_tokenizer(TokenizerConfig(kind="bytes"), ()),
}
texts = st.lists(st.one_of(st.text(), st.sampled_from([END, "<|", "|>", "'s", "\r\n", "  "]))).map(
    "".join
)


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@given(text=texts)
@example(text=END)
@example(text=f" {END}{END}\x00\ufeff")
@settings(deadline=None, max_examples=200)
def test_every_text_comes_back(kind: str, text: str) -> None:
    tokenizer = BYTE_LEVEL[kind]
    again = Tokenizer.from_json(tokenizer.to_json()) if END in text else tokenizer
    for each in (tokenizer, again):
        ids = each.encode(text)
        assert each.decode(ids) == text
        # nothing that can be typed is the end token
        assert each.end_id not in ids
    # what is streamed, token by token, adds up to the whole
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()


@given(text=texts)
@settings(deadline=None, max_examples=100)
def test_characters_come_back(text: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [text])
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_id not in ids


@pytest.mark.parametrize("kind", ["bpe", "char", "bytes"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@given(
    lines=st.lists(
        st.text().map(lambda text: "x" + text.replace("\n", END).rstrip("\r")),
        min_size=1,
        max_size=12,
    ),
    block_size=st.integers(1, 20),
)
@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_training_stream_decodes_to_the_corpus(
    tmp_path: Path, kind: str, layout: str, lines: list[str], block_size: int
) -> None:
    """Through the file, the store and the rows: the targets in order are the documents."""
    (tmp_path / "train.txt").write_bytes("\n".join(lines).encode())
    (tmp_path / "held.txt").write_bytes(b"held out")
    data = DataConfig(
        corpus="text",
        path=[str(tmp_path / "train.txt")],
        val_path=[str(tmp_path / "held.txt")],
        document="line",
        cache_dir=str(tmp_path / "cache"),
    )
    made = prepare(data, TokenizerConfig(kind=kind), say=lambda _: None)
    batch = make_batch(made.train, spans(made.train, block_size, layout))
    targets = batch.targets[batch.targets != IGNORED].tolist()
    documents: list[list[int]] = [[]]
    for token in targets:
        if token == made.tokenizer.end_id:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == []
    assert list(map(made.tokenizer.decode, documents)) == lines
