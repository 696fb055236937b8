"""Preparing data: its speed against the tokenizer's own, its memory, and what reading costs later.

python bench/preparation.py [megabytes=2000] [rounds=3]

Speed: the standard library's source as JSON lines, by GPT-2's own tokenizer where it lies beside
the checkout: `prepare` from the file to the store, all of it (the digest of the file, the pass that
counts, tokenizing, writing), in turns with `tokenizers.encode_batch` alone on the documents in
memory. Each is a process of its own; importing does not count.

Memory and start: a corpus of so many megabytes, made of that source with its lines in another order
each time, as one text without a break, and a quarter of it as JSON lines. The peak of a process
that prepares it; then how long `train.py` takes to train one step on it, in turns with a small one.

Reading: a batch of the large store against the step of the `tiny` model that it is for.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from record import FIRST_SEED, PROJECT, keep, machine, options, run, train
from startup import Case, measured

sys.path.insert(0, str(PROJECT))

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data.corpora import sources
from minigpt.data.corpora.corpus import whole

#: Of encode_batch's speed; bytes of resident memory; of a step.
SHARE, PEAK, READING = 0.85, 1.5e9, 0.03
GPT2 = PROJECT.parent / "shared" / "data" / "gpt2_tokenizer"
TINY = (
    "model.n_layer=1", "model.n_embd=16", "model.n_head=1", "trainer.accelerator=cpu",
    "trainer.max_steps=1000", "trainer.log_every_n_steps=1",
)  # fmt: skip
#: Bytes of documents whose speed is measured.
SPEED_BYTES = 24_000_000


def code() -> list[str]:
    """The standard library's source, a module a document."""
    return list(whole(sources(DataConfig(corpus="stdlib"))[0].documents()))


def shuffled(documents: list[str], megabytes: float) -> Iterator[str]:
    """So many megabytes of documents like these: their lines in another order each time."""
    draw, written = random.Random(FIRST_SEED), 0
    while written < megabytes * 1e6:
        lines = draw.choice(documents).splitlines(keepends=True)
        draw.shuffle(lines)
        text = "".join(lines)
        written += len(text.encode())
        yield text


def write(path: Path, documents: list[str], megabytes: float) -> Path:
    """A corpus as JSON lines or, where the name ends in .txt, as one text."""
    with path.open("w", encoding="utf-8") as file:
        for text in shuffled(documents, megabytes):
            file.write(text if path.suffix == ".txt" else json.dumps({"text": text}) + "\n")
    return path


def settings(path: Path, cache: Path) -> list[str]:
    """Of `train.py`, for a corpus in a cache of its own."""
    tokenizer = ["tokenizer=bpe"]
    if GPT2.is_dir():
        tokenizer = ["tokenizer=pretrained", f"tokenizer.path={GPT2}"]
    return [f"data={kind_of(path)}", f"data.path={path}", f"data.cache_dir={cache}", *tokenizer]


def measured_here(what: str, path: str, cache: str) -> None:
    """In a process of its own: prepare, or encode alone; print seconds, tokens and the peak."""
    import resource

    from minigpt.data.preparation import prepare
    from minigpt.data.tokenizer_files import pretrained_tokenizer

    data = DataConfig(corpus=kind_of(Path(path)), path=[path], cache_dir=cache)
    tokenizer = pretrained_tokenizer(str(GPT2)) if GPT2.is_dir() else TokenizerConfig()
    if what == "alone":
        import tokenizers

        made = prepare(data, tokenizer, say=lambda _: None)  # where none is given it is trained
        inner = tokenizers.Tokenizer.from_file(str(made.folder / "tokenizer.json"))
        documents = list(whole(sources(data)[0].documents()))
        started = time.perf_counter()
        encodings = inner.encode_batch(documents, add_special_tokens=False)
        seconds, n_tokens = time.perf_counter() - started, sum(map(len, encodings))
    else:
        started = time.perf_counter()
        made = prepare(data, tokenizer, say=lambda _: None)
        seconds = time.perf_counter() - started
        n_tokens = made.train.n_targets + made.validation.n_targets
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "tokens": n_tokens, "peak": peak}))


def in_process(what: str, path: Path, cache: Path) -> dict[str, Any]:
    """What `measured_here` prints."""
    return json.loads(run(__file__, what, str(path), str(cache)))


def speed(folder: Path, documents: list[str], rounds: int) -> dict[str, Any]:
    """Seconds of both in turns."""
    path = write(folder / "speed.jsonl", documents, SPEED_BYTES / 1e6)
    seconds: dict[str, list[float]] = {"prepare": [], "alone": []}
    for number in range(rounds):
        for what, each in seconds.items():
            cache = folder / f"speed-{what}-{number}"
            each.append(in_process(what, path, cache)["seconds"])
    share = median(a / b for a, b in zip(seconds["alone"], seconds["prepare"], strict=True))
    return {
        "megabytes": path.stat().st_size / 1e6,
        "seconds": seconds,
        "share": share,
        "reached": share >= SHARE,
    }


def to_a_step(path: Path, cache: Path, run_dir: Path) -> float:
    """Seconds until `train.py` has trained one step on a prepared corpus; it is then stopped."""
    command = ("train.py", *settings(path, cache), f"run_dir={run_dir}", *TINY)
    return measured(Case(command, stopped_at=run_dir / "metrics.csv")).begun


def reading(path: Path, small: Path, cache: Path, run_dir: Path) -> dict[str, Any]:
    """Milliseconds of a batch of the large store, and of a step of the `tiny` model."""
    from minigpt.data.batches import TrainingBatches
    from minigpt.data.token_store import open_stores

    summary = train(
        run_dir, "data=jsonl", f"data.path={small}", f"data.cache_dir={cache}",
        "trainer.max_steps=100", "trainer.accelerator=cpu",
    )  # fmt: skip
    step = summary["train_seconds"] / summary["steps"]
    folders = [open_stores(folder) for folder in cache.glob(f"{kind_of(path)}-*/")]
    store = max((stores[0] for stores in folders if stores), key=lambda each: len(each.tokens))
    batches = TrainingBatches(
        store, block_size=128, layout="packed", batch_size=32, seed=FIRST_SEED
    )
    seconds: list[float] = []
    for number in range(1000):
        started = time.perf_counter()
        batches[number]
        seconds.append(time.perf_counter() - started)
    share = median(seconds[10:]) / step
    return {
        "tokens_of_the_store": len(store.tokens),
        "milliseconds_a_batch": 1000 * median(seconds[10:]),
        "milliseconds_a_step": 1000 * step,
        "share": share,
        "reached": share < READING,
    }


def kind_of(path: Path) -> str:
    """Which `data=` reads a file."""
    return "text" if path.suffix == ".txt" else "jsonl"


def main(megabytes: int, rounds: int) -> None:
    """Measure, show and keep."""
    facts, documents = machine(), code()
    measured_all: dict[str, Any] = {"tokenizer": "gpt2" if GPT2.is_dir() else "bpe"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measured_all["speed"] = speed(folder, documents, rounds)
        print(json.dumps(measured_all["speed"]), flush=True)
        small, cache = write(folder / "small.jsonl", documents, 2), folder / "cache"
        in_process("prepare", small, cache)
        for name, part in (("large.jsonl", 0.25), ("large.txt", 1)):
            path = write(folder / name, documents, megabytes * part)
            made = in_process("prepare", path, cache)
            made |= {"megabytes": path.stat().st_size / 1e6, "reached": made["peak"] < PEAK}
            starts = [
                [to_a_step(each, cache, folder / "run") for each in (small, path)]
                for _ in range(rounds)
            ]
            made["seconds_to_a_step"] = dict(
                zip(("small", "large"), map(median, zip(*starts, strict=True)), strict=True)
            )
            measured_all[name] = made
            print(json.dumps(made), flush=True)
        measured_all["reading"] = reading(path, small, cache, folder / "run")
    keep("preparation", facts, measured_all)


if __name__ == "__main__":
    if sys.argv[1:2] in (["prepare"], ["alone"]):
        measured_here(*sys.argv[1:])
    else:
        main(**options(sys.argv[1:], megabytes=2000, rounds=3))
