"""A corpus of any size as one endless sequence of tokens, made just ahead of training.

A process of its own reads documents, shuffles them, and writes their tokens in segments of a
million to a folder, a few segments ahead of what training reads; what was read is removed. Every
epoch reads the whole corpus, `data.shuffle_buffer` documents at a time in an order drawn from the
seed, the epoch and their number. So the sequence is a function of the corpus and the seed alone:
processes and workers read their rows of it from the folder, and a resumed run has it made again
from the `Place` at which a segment begins.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.config import DataConfig
from minigpt.data.corpora import sources
from minigpt.data.corpora.corpus import Part, Source, whole
from minigpt.data.corpora.split import is_held
from minigpt.data.token_store import id_type
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError, RunError
from minigpt.files import beside, locked

#: Tokens of a segment.
SEGMENT = 1 << 20
#: Characters from which on documents are not held back to be shuffled with more of them.
_MOST_HELD = 64_000_000
#: Seconds between looks at what another process does.
_LOOK = 0.02
#: Looks in vain after which that process is taken for ended.
_MISSES = 5
#: Seconds that the process which makes a stream has to begin.
_PATIENCE = 60.0
#: Keeps the draw of the order of documents apart from other draws by the same seed.
_SHUFFLE_DRAW = 0x5347
_ALIVE, _FAILED, _WANTED = "alive", "failed", "wanted"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the sequence a token is.

    In `epoch`, documents are shuffled in blocks. Block number `block` begins in shard `shard` of
    the source, after `skip` documents of it, when `read` documents that are not blank have been
    read; the token is number `token` of the block's document number `document`, as shuffled, whose
    number 0 is the end token before it.
    """

    epoch: int = 0
    block: int = 0
    shard: int = 0
    skip: int = 0
    read: int = 0
    document: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class Feed:
    """What a stream is made of, for the process that makes it.

    Its segments are numbered from `first`, which begins at `place`; `ahead` of them are made before
    they are wanted.
    """

    data: DataConfig
    tokenizer: str
    seed: int
    ahead: int
    first: int = 0
    place: Place = Place()


def documents(
    source: Source, data: DataConfig, seed: int, at: Place
) -> Iterator[tuple[Place, str]]:
    """The endless sequence of documents from a place on, each with the place where it begins.

    Raises `InputError` if there are none.
    """
    small: list[str] = []  # the whole corpus, where it is one block
    while True:
        found = at != Place(epoch=at.epoch)
        n_blocks, first = 0, list[str]()
        for start, block in [(at, small)] if small else _blocks(source, data, at):
            found = True
            n_blocks, first = n_blocks + 1, block
            draw = np.random.default_rng([_SHUFFLE_DRAW, seed, start.epoch, start.block])
            order = draw.permutation(len(block))
            for number in range(start.document, len(block)):
                yield replace(start, document=number, token=0), block[order[number]]
        if not found:
            raise InputError(f"{source.where}: no text in it to train on")
        if n_blocks == 1 and at.block == 0:
            small = first
        at = Place(epoch=at.epoch + 1)


def _blocks(source: Source, data: DataConfig, at: Place) -> Iterator[tuple[Place, list[str]]]:
    """The rest of an epoch in blocks to be shuffled, from the one on that `at` is in."""
    divided = not (data.val_path or data.val_split)
    start, block, size, read = at, list[str](), 0, at.read
    for shard, number, text in _from(source, at):
        if not text.strip():
            continue
        if read == data.max_documents:
            break
        read += 1
        if divided and is_held(text, data.val_fraction):
            continue
        block.append(text)
        size += len(text)
        if len(block) == data.shuffle_buffer or size >= _MOST_HELD:
            yield start, block
            start = Place(start.epoch, start.block + 1, shard, number, read)
            block, size = [], 0
    if block:
        yield start, block


def _from(source: Source, at: Place) -> Iterator[tuple[int, int, str]]:
    """Documents from the beginning of a block on: shard, number in it from 1, text."""
    for shard in range(at.shard, len(source.shards)):
        skip = at.skip if shard == at.shard else 0
        texts = enumerate(whole(source.shards[shard]()), 1)
        yield from ((shard, number, text) for number, text in texts if number > skip)


def segments(feed: Feed, tokenizer: Tokenizer) -> Iterator[tuple[Place, npt.NDArray[Any]]]:
    """The sequence from a place on, cut every `SEGMENT` tokens, each with the place of its cut.

    The array is the same each time, with other tokens in it.
    """
    train, _ = sources(feed.data)
    dtype = id_type(tokenizer)
    places: deque[Place] = deque()

    def texts() -> Iterator[Part]:
        for place, text in documents(train, feed.data, feed.seed, feed.place):
            places.append(place)
            yield Part(text)

    segment, end = np.empty(SEGMENT, dtype), np.array([tokenizer.end_id], dtype)
    filled, start, skip = 0, feed.place, feed.place.token
    for part, _ in tokenizer.encode_parts(texts()):
        ids = np.append(end, part.astype(dtype))[skip:]
        place = replace(places.popleft(), token=skip)
        skip = 0
        while len(ids):
            if filled == 0:
                start = place
            taken = min(len(ids), SEGMENT - filled)
            segment[filled : filled + taken] = ids[:taken]
            filled, ids = filled + taken, ids[taken:]
            place = replace(place, token=place.token + taken)
            if filled == SEGMENT:
                yield start, segment
                filled = 0


def make(feed: Feed, folder: Path, parent: int) -> None:
    """Write segments into `folder` for as long as the process `parent` lives.

    What goes wrong is written there too, for those who read. Ctrl-C is for `parent` to heed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with locked(folder / _ALIVE):
        try:
            tokenizer = Tokenizer.from_json(feed.tokenizer)
            for number, (place, tokens) in enumerate(segments(feed, tokenizer), feed.first):
                while number >= _wanted(folder) + feed.ahead:
                    if os.getppid() != parent:
                        return
                    time.sleep(_LOOK)
                part = beside(folder / segment_name(number))
                tokens.tofile(part)
                (folder / f"{number}.json").write_text(json.dumps(asdict(place)), "utf-8")
                part.rename(folder / segment_name(number))
        except Exception as error:  # noqa: BLE001  whatever it is, others wait to know of it
            kind = "input" if isinstance(error, InputError) else "run"
            words = str(error) if isinstance(error, InputError | RunError) else repr(error)
            with contextlib.suppress(OSError):
                part = beside(folder / _FAILED)
                part.write_text(json.dumps([kind, words]), "utf-8")
                part.rename(folder / _FAILED)


def segment_name(number: int) -> str:
    """The file of a segment."""
    return f"{number}.bin"


def _wanted(folder: Path) -> int:
    """The first segment that is still read."""
    try:
        return int((folder / _WANTED).read_text("utf-8") or 0)
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def streaming(feed: Feed, folder: Path) -> Generator[None, None, None]:
    """Have a stream made in `folder` while the block runs; nothing of it is left."""
    for left in folder.parent.glob("*/"):  # by processes that were killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _PATIENCE and not is_made(left):
                shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _WANTED).write_text(str(feed.first), "utf-8")
    maker = get_context("spawn").Process(target=make, args=(feed, folder, os.getpid()), daemon=True)
    maker.start()
    try:
        yield
    finally:
        maker.terminate()
        maker.join()
        shutil.rmtree(folder, ignore_errors=True)


def want(folder: Path, number: int, keep: int) -> None:
    """Say that no segment before `number` is read any more; so many before it are kept."""
    before = _wanted(folder)
    if number <= before:
        return
    part = beside(folder / _WANTED)
    part.write_text(str(number), "utf-8")
    part.rename(folder / _WANTED)
    for old in range(max(0, before - keep), max(0, number - keep)):
        (folder / segment_name(old)).unlink(missing_ok=True)
        (folder / f"{old}.json").unlink(missing_ok=True)


def place_of(folder: Path, number: int) -> dict[str, int]:
    """The place at which a segment begins, as plain data."""
    return json.loads((folder / f"{number}.json").read_text("utf-8"))


def read(folder: Path, first: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Tokens first … first + count - 1 of the sequence; waits until they are made.

    Raises `InputError` or `RunError` if they never will be.
    """
    parts: list[npt.NDArray[Any]] = []
    for number in range(first // SEGMENT, (first + count - 1) // SEGMENT + 1):
        path = folder / segment_name(number)
        _await(path)
        whole_segment = np.memmap(path, dtype=dtype, mode="r")
        begin = max(0, first - number * SEGMENT)
        parts.append(whole_segment[begin : first + count - number * SEGMENT])
    return np.concatenate(parts)


def _await(path: Path) -> None:
    folder, misses = path.parent, 0
    deadline = time.monotonic() + _PATIENCE
    while not path.exists():
        if (folder / _FAILED).exists():
            kind, words = json.loads((folder / _FAILED).read_text("utf-8"))
            raise InputError(words) if kind == "input" else RunError(words)
        begun = (folder / _ALIVE).exists()
        gone = not is_made(folder) if begun else time.monotonic() > deadline
        misses = misses + 1 if gone else 0  # it may be about to lock, or just have written
        if misses > _MISSES:
            raise RunError("the process that tokenizes the stream has ended")
        time.sleep(_LOOK)


def is_made(folder: Path) -> bool:
    """Whether a process makes a stream in `folder`: it has locked a file there."""
    try:
        with locked(folder / _ALIVE, patience=-1):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
