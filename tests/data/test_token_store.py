import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data import corpus_tokenizer, preparation
from minigpt.data.corpora import split
from minigpt.data.preparation import PreparedData, prepare
from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError, RunError

SHAKESPEARE = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"
LINES = [f"line {i} of {END} the text, é猫" for i in range(30)]


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """Thirty documents, of which every tenth is held out, and a cache of their own."""
    (tmp_path / "my.txt").write_text("\n".join(LINES), "utf-8")
    return DataConfig(
        corpus="text",
        path=[str(tmp_path / "my.txt")],
        document="line",
        cache_dir=str(tmp_path / "cache"),
    )


def ready(data: DataConfig, tokenizer: TokenizerConfig | Tokenizer | str = "bytes") -> PreparedData:
    if isinstance(tokenizer, str):
        tokenizer = TokenizerConfig(kind=tokenizer)
    return prepare(data, tokenizer, say=lambda _: None)


def folders(data: DataConfig) -> list[Path]:
    """The prepared folders, hidden ones included."""
    return [path.parent for path in Path(data.cache_dir).glob("*/train.bin")]


def documents(store: TokenStore, tokenizer: Tokenizer) -> list[str]:
    """What the stream says, checked to be end, document, end, document, …, end."""
    tokens = store.tokens.tolist()
    assert [i for i, token in enumerate(tokens) if token == tokenizer.end_id] == list(store.starts)
    assert store.starts[0] == 0
    assert store.starts[-1] == len(tokens) - 1
    return [
        tokenizer.decode(tokens[a:b]) for a, b in zip(store.starts, store.starts[1:], strict=False)
    ]


@pytest.mark.parametrize("kind", ["bpe", "char", "bytes"])
def test_the_stream_is_the_corpus(data: DataConfig, kind: str) -> None:
    made = ready(data, kind)
    train = [text for i, text in enumerate(LINES, 1) if i % 10]
    assert documents(made.train, made.tokenizer) == train
    assert documents(made.validation, made.tokenizer) == LINES[9::10]
    assert made.train.n_bytes == sum(len(text.encode()) for text in train)
    assert made.documents == made.train.n_documents == 27
    assert made.train.n_targets == len(made.train.tokens) - 1
    assert made.train.end_id == made.tokenizer.end_id
    assert made.train.log_probability is None


def test_bpe_learns_from_the_training_part_alone(data: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("zzzzzz " * 50)
    data.document, data.val_path = "file", [str(tmp_path / "held.txt")]
    assert b"zz" not in ready(data, "bpe").tokenizer.token_bytes
    # the alphabet is that of the whole corpus
    assert b"z" in ready(data, "char").tokenizer.token_bytes


def test_it_is_made_once(data: DataConfig) -> None:
    said: list[str] = []
    first = prepare(data, TokenizerConfig(), say=said.append)
    assert not first.reused
    assert any("tokenizing into" in line for line in said)
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    said.clear()
    again = prepare(data, TokenizerConfig(), say=said.append)
    assert again.reused
    assert said[-1] == f"using the prepared tokens in {first.folder}"
    assert before == {path: path.stat().st_mtime_ns for path in again.folder.iterdir()}
    assert again.tokenizer.to_json() == first.tokenizer.to_json()
    # as on a resume, where the tokenizer comes out of the checkpoint
    assert ready(data, Tokenizer.from_json(first.tokenizer.to_json())).reused


def test_settings_that_do_not_change_the_tokens_do_not_remake_them(data: DataConfig) -> None:
    ready(data)
    data.batch_size, data.layout, data.document_mask = 3, "padded", True
    assert ready(data).reused


@pytest.mark.parametrize(
    "change",
    [
        lambda data: setattr(data, "max_documents", 20),
        lambda data: setattr(data, "val_fraction", 0.2),
        lambda data: setattr(data, "document", "file"),
        lambda data: Path(data.path[0]).write_text("\n".join([*LINES[:-1], "other"]), "utf-8"),
    ],
)
def test_other_documents_or_another_split_are_made_anew(
    data: DataConfig, change: Callable[[DataConfig], None]
) -> None:
    first = ready(data)
    change(data)
    other = ready(data)
    assert not other.reused
    assert other.folder != first.folder


def test_another_vocabulary_is_made_anew(data: DataConfig) -> None:
    folders = {
        ready(data, tokenizer).folder
        for tokenizer in (
            TokenizerConfig(vocab_size=260), TokenizerConfig(vocab_size=270), "char", "bytes"
        )
    }  # fmt: skip
    assert len(folders) == 4


@pytest.mark.parametrize("name", ["meta.json", "tokenizer.json", "train.bin", "validation.idx"])
@pytest.mark.parametrize("damage", ["gone", "cut", "empty"])
def test_a_damaged_folder_is_made_again(data: DataConfig, name: str, damage: str) -> None:
    first = ready(data)
    whole = np.array(first.train.tokens)
    path = first.folder / name
    contents = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(contents[: len(contents) - 2] if damage == "cut" else b"")
    again = ready(data)
    assert not again.reused
    assert (again.train.tokens == whole).all()
    assert ready(data).reused


@pytest.mark.parametrize("contents", ["[]", "[" * 100_000, '{"train": {"bytes": "x"}}', "5"])
def test_a_damaged_meta_is_made_again(data: DataConfig, contents: str) -> None:
    (ready(data).folder / "meta.json").write_text(contents)
    assert not ready(data).reused
    assert ready(data).reused


def test_tokens_that_no_tokenizer_has_are_made_again(data: DataConfig) -> None:
    folder = ready(data).folder
    contents = bytearray((folder / "train.bin").read_bytes())
    contents[40:80] = b"\xff" * 40
    (folder / "train.bin").write_bytes(contents)
    assert not ready(data).reused


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_in_the_place_of_a_folder_gives_way(data: DataConfig, kind: str) -> None:
    folder = ready(data).folder
    shutil.rmtree(folder)
    folder.write_text("") if kind == "file" else folder.symlink_to("nowhere")
    assert not ready(data).reused
    assert ready(data).reused


def test_what_a_kill_left_is_cleared(data: DataConfig) -> None:
    folder = ready(data).folder
    for name, age in (("old", 10_000), ("new", 0)):
        left = folder.with_name(f".{folder.name}.{name}")
        left.mkdir()
        (left / "train.bin").write_bytes(b"x")
        written = time.time() - age
        for path in (left / "train.bin", left):
            os.utime(path, (written, written))
    shutil.rmtree(folder)
    ready(data)
    assert [path.name[-3:] for path in folder.parent.glob(".*")] == ["new"]


def test_a_stream_that_grew_is_made_again(data: DataConfig) -> None:
    first = ready(data)
    with (first.folder / "train.bin").open("ab") as file:
        file.write(b"\0\0")
    again = ready(data)
    assert not again.reused
    assert len(again.train.tokens) == len(first.train.tokens)


def test_a_stop_half_way_leaves_nothing(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_give_name", stop)
        with pytest.raises(KeyboardInterrupt):
            ready(data)
    assert folders(data) == []
    # a process that is killed cannot tidy up, but what it leaves is not taken for finished
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_give_name", stop)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            ready(data)
    (left,) = folders(data)
    assert left.name.startswith(".")
    assert not ready(data).reused


def test_a_full_disk_is_no_fault_of_the_input(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(preparation, "_give_name", full)
    with pytest.raises(RunError, match=r"No space left on device; data.cache_dir sets another"):
        ready(data)
    assert folders(data) == []


def at_once(data: DataConfig, say: Callable[[str], None]) -> list[PreparedData | InputError]:
    """What two get that prepare the same, the second of them while the first does."""
    first_is_at_work = Event()
    words: list[str] = []

    def first_says(line: str) -> None:
        first_is_at_work.set()
        if line.startswith("corpus"):  # the other one is to meet with it here
            deadline = time.monotonic() + 30
            while not any("waiting" in word for word in words) and time.monotonic() < deadline:
                time.sleep(0.01)

    def second_says(line: str) -> None:
        words.append(line)
        say(line)

    def first() -> PreparedData | InputError:
        return outcome(data, first_says)

    def second() -> PreparedData | InputError:
        first_is_at_work.wait(30)
        return outcome(data, second_says)

    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in (pool.submit(first), pool.submit(second))]


def outcome(data: DataConfig, say: Callable[[str], None]) -> PreparedData | InputError:
    try:
        return prepare(data, TokenizerConfig(kind="bytes"), say=say)
    except InputError as error:
        return error


def test_one_prepares_and_the_other_waits(data: DataConfig) -> None:
    said: list[str] = []
    first, second = at_once(data, said.append)
    assert isinstance(first, PreparedData)
    assert isinstance(second, PreparedData)
    assert (first.reused, second.reused) == (False, True)
    assert first.folder == second.folder
    assert (first.train.tokens == second.train.tokens).all()
    assert said[0] == "another process prepares the same data; waiting for it"
    assert folders(data) == [first.folder]


def test_the_one_that_waits_shares_the_failure(data: DataConfig) -> None:
    Path(data.path[0]).write_bytes(b"text\xff")
    scanned: list[str] = []
    whole_scan = split._scan  # noqa: SLF001

    def scan(*arguments: object, **named: object) -> object:
        scanned.append("")
        time.sleep(1)
        return whole_scan(*arguments, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "_scan", scan)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(outcome, data, lambda _: None)
            time.sleep(0.3)
            second = pool.submit(outcome, data, lambda _: None)
            outcomes = [first.result(), second.result()]
    assert len(scanned) == 1
    assert [str(each) for each in outcomes] == [str(outcomes[0])] * 2
    assert "byte 4 is not utf-8" in str(outcomes[0])
    # a later one looks for itself
    Path(data.path[0]).write_text("\n".join(LINES), "utf-8")
    assert not ready(data).reused


def test_it_says_what_differs_from_before(data: DataConfig) -> None:
    def made(kind: str = "bytes") -> str:
        said: list[str] = []
        prepare(data, TokenizerConfig(kind=kind), say=said.append)
        return said[-1]

    assert made().endswith(ready(data).folder.name)
    assert made().startswith("using the prepared tokens in ")
    assert made("char").endswith(", since the tokenizer differs from what was prepared")
    Path(data.path[0]).write_text("\n".join([*LINES, "one more"]), "utf-8")
    assert made("char").endswith(", since the text differs from what was prepared")
    data.val_fraction = 0.2
    assert made("char").endswith(", since the split differs from what was prepared")
    # neither a name nor a date makes another text
    file = Path(data.path[0]).rename(Path(data.path[0]).with_name("other.txt"))
    data.path = [str(file)]
    assert made("char").startswith("using the prepared tokens in ")


def test_a_file_that_changes_while_it_is_read_is_noticed(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = preparation.write_stream

    def and_then_change(path: Path, *arguments: object) -> object:
        made = write(path, *arguments)  # type: ignore[arg-type]
        if path.name == "train":
            Path(data.path[0]).write_text("\n".join(reversed(LINES)), "utf-8")
        return made

    monkeypatch.setattr(preparation, "write_stream", and_then_change)
    with pytest.raises(InputError, match="its files changed while they were read"):
        ready(data)
    assert folders(data) == []


def test_what_is_damaged_is_said_to_be(data: DataConfig) -> None:
    (ready(data).folder / "train.bin").write_bytes(b"")
    said: list[str] = []
    prepare(data, TokenizerConfig(kind="bytes"), say=said.append)
    assert said[-1].endswith(", since what was prepared before is damaged")


def test_a_bpe_learns_from_so_much_of_a_large_text(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[str] = []

    def train(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
        learned.extend(documents)
        return train_tokenizer(config, learned)

    monkeypatch.setattr(corpus_tokenizer, "train_tokenizer", train)
    monkeypatch.setattr(corpus_tokenizer, "BPE_LEARNS_FROM", 400)
    said: list[str] = []
    prepare(data, TokenizerConfig(), say=said.append)
    assert any("% of the training text" in line for line in said)
    assert 8 <= len(learned) <= 12
    places = [LINES.index(text) for text in learned]
    assert max(b - a for a, b in pairwise(places)) <= 4


def test_an_unseen_character_names_the_document(data: DataConfig) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["line of the text 0123456789"])
    with pytest.raises(InputError, match=r"train document 1: the character '<'"):
        ready(data, tokenizer)
    assert folders(data) == []


def test_ids_beyond_16_bits(data: DataConfig) -> None:
    alphabet = "".join(chr(0x10000 + i) for i in range(70_000))
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [alphabet, *LINES])
    made = ready(data, tokenizer)
    assert made.train.tokens.dtype == np.uint32
    assert documents(made.validation, tokenizer) == LINES[9::10]
    assert ready(data).train.tokens.dtype == np.uint16


def test_a_mapped_stream_travels_by_name(data: DataConfig) -> None:
    store = ready(data).train
    sent = pickle.loads(pickle.dumps(store))  # noqa: S301  what was just written
    assert isinstance(sent.tokens, np.memmap)
    assert (sent.tokens == store.tokens).all()
    assert (sent.starts == store.starts).all()
    assert sent.n_bytes == store.n_bytes
    in_memory = TokenStore(np.array([5, 1, 5]), np.array([0, 2]), 1, -2.0)
    sent = pickle.loads(pickle.dumps(in_memory))  # noqa: S301  what was just written
    assert sent.tokens.tolist() == [5, 1, 5]


def test_stories_know_their_probability(tmp_path: Path) -> None:
    made = ready(DataConfig(max_documents=60, cache_dir=str(tmp_path)), "bpe")
    log_probability = made.corpus.log_probability
    assert log_probability is not None
    told = [log_probability(text) for text in documents(made.validation, made.tokenizer)]
    assert made.validation.n_documents == 6
    assert made.validation.log_probability == pytest.approx(sum(told), rel=1e-12)


def test_meta_is_plain(data: DataConfig) -> None:
    made = ready(data)
    meta = json.loads((made.folder / "meta.json").read_text("utf-8"))
    assert meta["train"]["documents"] == 27
    assert Tokenizer.from_json((made.folder / "tokenizer.json").read_text("utf-8")).kind == "bytes"
    assert made.folder.stat().st_mode & 0o055 == 0o055
    assert not set(made.folder.name) & set("=,(){}[]:' ")


def test_a_cache_folder_that_cannot_be(data: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data.cache_dir = str(tmp_path / "file" / "cache")
    with pytest.raises(InputError, match=r"data.cache_dir="):
        ready(data)


def test_nothing_to_train_on_is_an_error_before_anything_is_written(data: DataConfig) -> None:
    Path(data.path[0]).write_text("x")
    with pytest.raises(InputError, match="too short: 1 document of 1 character"):
        ready(data)
    assert [path.name for path in Path(data.cache_dir).iterdir()] == ["locks"]


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="tinyshakespeare.txt is not there")
def test_shakespeare_by_characters(tmp_path: Path) -> None:
    data = DataConfig(corpus="text", path=[str(SHAKESPEARE)], cache_dir=str(tmp_path))
    made = ready(data, "char")
    text = SHAKESPEARE.read_bytes().decode()
    assert made.tokenizer.vocab_size == 66
    assert (made.documents, made.validation.n_documents) == (1, 1)
    assert documents(made.train, made.tokenizer) + documents(made.validation, made.tokenizer) == [
        text[:1_003_854],
        text[1_003_854:],
    ]
