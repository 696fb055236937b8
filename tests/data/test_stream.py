"""A streamed corpus: every document once an epoch, and the same sequence wherever one begins."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data import stream
from minigpt.data.corpora import load_corpus, sources
from minigpt.data.corpora.corpus import whole
from minigpt.data.corpora.split import is_held
from minigpt.data.stream import Feed, Place, documents, place_of, read, streaming, want
from minigpt.data.stream_batches import StreamBatches, segment_of_step, steps_of_group
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError, RunError

TEXTS = [f"document number {i}" for i in range(57)]
BYTES = train_tokenizer(TokenizerConfig(kind="bytes"), ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty-seven documents in three files, blank lines between them."""
    place = tmp_path_factory.mktemp("text")
    for number in range(3):
        part = TEXTS[number * 20 : number * 20 + 20]
        (place / f"{number}.txt").write_text("\n\n".join(part) + "\n", "utf-8")
    return place


def config(folder: Path, **settings: object) -> DataConfig:
    given = {"document": "line", "streaming": True, "shuffle_buffer": 7} | settings
    return DataConfig(corpus="text", path=[str(folder)], **given)  # type: ignore[arg-type]


def sequence(
    data: DataConfig, seed: int = 1, at: Place | None = None
) -> Iterator[tuple[Place, str]]:
    return documents(sources(data)[0], data, seed, at or Place())


def test_every_document_once_an_epoch(folder: Path) -> None:
    data = config(folder)
    trained_on = [text for text in TEXTS if not is_held(text, data.val_fraction)]
    assert 0 < len(trained_on) < len(TEXTS)
    n = len(trained_on)
    told = [text for _, text in islice(sequence(data), 3 * n)]
    epochs = [told[i * n : i * n + n] for i in range(3)]
    assert all(Counter(epoch) == Counter(trained_on) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert told != [text for _, text in islice(sequence(data, seed=2), 3 * n)]
    # shuffled a buffer at a time
    assert Counter(told[:7]) == Counter(trained_on[:7])
    assert told[:7] != trained_on[:7]


def test_what_is_held_out_is_what_is_validated_on(folder: Path) -> None:
    data = config(folder)
    head = load_corpus(data)
    assert [*whole(head.validation())] == [t for t in TEXTS if is_held(t, data.val_fraction)]
    assert Counter(whole(head.train())) == Counter(t for t in TEXTS if not is_held(t, 0.1))
    assert head.summary().endswith("57 documents at its beginning")


def test_the_limit_counts_documents(folder: Path) -> None:
    data = config(folder, max_documents=30, val_path=[str(folder / "0.txt")])
    told = [text for _, text in islice(sequence(data), 60)]
    assert Counter(told[:30]) == Counter(told[30:]) == Counter(TEXTS[20:50])


@given(skip=st.integers(0, 200), buffer=st.integers(1, 80), limit=st.sampled_from([None, 30]))
@settings(max_examples=60)
def test_it_goes_on_from_any_place(folder: Path, skip: int, buffer: int, limit: int | None) -> None:
    data = config(folder, shuffle_buffer=buffer, max_documents=limit)
    told = list(islice(sequence(data), skip + 70))
    place = told[skip][0]
    assert list(islice(sequence(data, at=place), 70)) == told[skip:]


def test_the_segments_are_the_documents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEGMENT", 100)
    feed = Feed(config(folder), BYTES.to_json(), seed=1, ahead=1)

    def cut(feed: Feed, count: int) -> list[tuple[Place, list[int]]]:
        made = stream.segments(feed, BYTES)
        return [(place, tokens.tolist()) for place, tokens in islice(made, count)]

    made = cut(feed, 40)
    tokens = [token for _, segment in made for token in segment]
    told = [text for _, text in islice(sequence(config(folder)), 300)]
    expected = [token for text in told for token in [BYTES.end_id, *BYTES.encode(text)]]
    assert tokens == expected[:4000]
    for number in (1, 7, 33):
        again = Feed(feed.data, feed.tokenizer, 1, ahead=1, first=number, place=made[number][0])
        assert cut(again, 5) == made[number : number + 5]


def large(tmp_path: Path) -> DataConfig:
    """A corpus of a little more than two segments of bytes."""
    lines = "\n".join(f"{i} {'x' * 90}" for i in range(23_000))
    (tmp_path / "my.txt").write_text(lines, "utf-8")
    return DataConfig(
        corpus="text", path=[str(tmp_path / "my.txt")], document="line", streaming=True
    )


def test_a_process_makes_it_and_leaves_nothing(tmp_path: Path) -> None:
    data = large(tmp_path)
    feed = Feed(data, BYTES.to_json(), seed=3, ahead=2)
    folder = tmp_path / "streams" / "one"
    made = stream.segments(feed, BYTES)
    expected = [(place, tokens.copy()) for place, tokens in islice(made, 4)]
    with streaming(feed, folder):
        tokens = read(folder, 5, stream.SEGMENT, np.uint16)
        whole_text = np.concatenate([expected[0][1], expected[1][1]])
        assert (tokens == whole_text[5 : 5 + len(tokens)]).all()
        assert not (folder / "2.bin").exists()
        want(folder, 2, keep=1)
        assert (read(folder, 3 * stream.SEGMENT, 10, np.uint16) == expected[3][1][:10]).all()
        assert not (folder / "0.bin").exists()
        assert (folder / "1.bin").exists()
        assert Place(**place_of(folder, 3)) == expected[3][0]
    assert list((tmp_path / "streams").iterdir()) == []


def test_what_goes_wrong_there_is_said_here(tmp_path: Path) -> None:
    (tmp_path / "my.jsonl").write_text('{"text": "a"}\n{"text": "b"}\nno JSON\n')
    data = DataConfig(corpus="jsonl", path=[str(tmp_path / "my.jsonl")], streaming=True)
    folder = tmp_path / "streams" / "one"
    with (
        streaming(Feed(data, BYTES.to_json(), 1, ahead=1), folder),
        pytest.raises(InputError, match=r"my.jsonl, line 3: not JSON"),
    ):
        read(folder, 0, 1, np.uint16)


def test_a_killed_process_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "one"
    (tmp_path / "streams" / "left").mkdir(parents=True)
    os.utime(tmp_path / "streams" / "left", (0, 0))
    with streaming(Feed(large(tmp_path), BYTES.to_json(), 1, ahead=1), folder):
        assert not (tmp_path / "streams" / "left").exists()
        read(folder, 0, 1, np.uint16)
        (maker,) = active_children()
        os.kill(maker.pid or 0, signal.SIGKILL)
        with pytest.raises(RunError, match="the process that tokenizes the stream has ended"):
            read(folder, 5 * stream.SEGMENT, 1, np.uint16)


def batches(folder: Path, **settings: Any) -> StreamBatches:
    return StreamBatches(
        folder, end_id=BYTES.end_id, dtype="<u2", block_size=64, batch_size=12, seed=5, **settings
    )


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Three segments of random tokens as a process would have made them."""
    tokens = np.random.default_rng(0).integers(0, 256, 3 * stream.SEGMENT, dtype=np.uint16)
    for number in range(3):
        tokens[number * stream.SEGMENT :][: stream.SEGMENT].tofile(tmp_path / f"{number}.bin")
    return tmp_path, tokens


def test_every_row_of_a_group_is_trained_on_once(written: tuple[Path, np.ndarray]) -> None:
    folder, tokens = written
    steps = steps_of_group(12, 64)
    all_batches = batches(folder)
    for group in range(2):
        targets = [all_batches[group * steps + i].targets.numpy() for i in range(steps)]
        read_rows = {row.tobytes() for row in np.concatenate(targets)}
        n = steps * 12 * 64
        rows = tokens[group * n + 1 : group * n + n + 1].astype(np.int64).reshape(-1, 64)
        assert read_rows == {row.tobytes() for row in rows}
    assert segment_of_step(0, 12, 64) == 0
    assert segment_of_step(2 * steps, 12, 64) == 2 * steps * 12 * 64 // stream.SEGMENT


@pytest.mark.parametrize(("accumulate", "world_size"), [(2, 1), (1, 3), (2, 2)])
def test_processes_share_the_same_rows(
    written: tuple[Path, np.ndarray], accumulate: int, world_size: int
) -> None:
    folder, _ = written
    for step in (0, 7, steps_of_group(12, 64) + 1):
        parts = [
            batches(folder, accumulate=accumulate, rank=rank, world_size=world_size)[
                step * accumulate + micro_step
            ]
            for micro_step in range(accumulate)
            for rank in range(world_size)
        ]
        assert np.concatenate([part.inputs for part in parts]).tolist() == (
            batches(folder)[step].inputs.tolist()
        )
        assert {part.step_targets for part in parts} == {12 * 64}


def test_the_document_mask_finds_the_end_tokens(tmp_path: Path) -> None:
    tokens = np.full(3 * stream.SEGMENT, 65, np.uint16)
    tokens[10::50] = BYTES.end_id
    for number in range(3):
        tokens[number * stream.SEGMENT :][: stream.SEGMENT].tofile(tmp_path / f"{number}.bin")
    made = StreamBatches(
        tmp_path, end_id=BYTES.end_id, dtype="<u2", block_size=64, batch_size=2, seed=0,
        document_mask=True,
    )[0]  # fmt: skip
    assert made.positions is not None
    assert ((made.positions == 0) == (made.inputs == BYTES.end_id))[:, 1:].all()
