"""generate.py from a checkpoint of random weights: what is printed where, and what is refused."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import generate
from minigpt import progress
from minigpt.checkpoint import load_model
from minigpt.command_line import run
from minigpt.generation import decode
from minigpt.generation.config import GenerateConfig

PROJECT = Path(generate.__file__).parent


@dataclass
class Shown:
    """What a run of the command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Shown]


@pytest.fixture
def command(
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Run generate.py in a folder where `model.ckpt` is a checkpoint; float64, so that it is
    exact."""
    monkeypatch.chdir(checkpoint().parent)

    def call(*arguments: str, model: str = "model.ckpt") -> Shown:
        argv = ["dtype=float64", "seed=1", "max_new_tokens=12", *arguments]
        if model:
            argv.append(f"checkpoint={model}")
        status = run(generate.main, GenerateConfig, "generate", argv)
        captured = capsys.readouterr()
        return Shown(status, captured.out, captured.err)

    return call


def text_of(shown: Shown) -> str:
    """The continuation of a json line."""
    text = json.loads(shown.out)["text"]
    assert isinstance(text, str)
    return text


def test_streamed_whole_and_json_are_the_same_text(command: Command) -> None:
    for seed in range(3):  # random bytes: many are not whole characters
        streamed = command("prompt=Once é", f"seed={seed}", "max_new_tokens=30")
        whole = command("prompt=Once é", f"seed={seed}", "max_new_tokens=30", "stream=false")
        line = command("prompt=Once é", f"seed={seed}", "max_new_tokens=30", "format=json")
        assert streamed.status == 0
        assert streamed.out == whole.out == f"Once é{text_of(line)}\n"


def test_without_echo_only_the_continuation(command: Command) -> None:
    shown = command("prompt=Once", "echo=false")
    assert command("prompt=Once").out == "Once" + shown.out


def test_no_new_tokens_give_the_prompt_alone(command: Command) -> None:
    assert command("prompt=Once", "max_new_tokens=0").out == "Once\n"
    assert command("prompt=Once", "max_new_tokens=0", "stream=false").out == "Once\n"


def test_a_json_line_holds_what_it_says(command: Command, tmp_path: Path) -> None:
    shown = command("prompt=a b", "format=json", "seed=7")
    line = json.loads(shown.out)
    assert line["prompt"] == "a b"
    assert line["reason"] in ("end", "length")
    assert (line["id"], line["seed"], line["sample"]) == (1, 7, 0)
    assert len(line["logprobs"]) == len(line["ids"])
    assert max(line["logprobs"]) < 0
    assert line["tokens_per_second"] > 0
    tokenizer = load_model(tmp_path / "model.ckpt").tokenizer
    assert tokenizer.decode(line["ids"]) == line["text"]


def test_a_fresh_seed_is_named_and_gives_the_text_again(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = json.loads(command("format=json", "seed=null").out)
    again = json.loads(command("format=json", f"seed={first['seed']}").out)
    assert again["ids"] == first["ids"]
    assert json.loads(command("format=json", "seed=null").out)["seed"] != first["seed"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "seed=3" in command("seed=3").err


def test_several_samples_are_separated_and_in_order(command: Command) -> None:
    shown = command("prompt=longer", "prompt=b", "num_samples=2", "batch_size=3")
    lines = command("prompt=longer", "prompt=b", "num_samples=2", "format=json").out.splitlines()
    expected = ""
    for i, line in enumerate(map(json.loads, lines)):
        expected += f"--- prompt {i // 2 + 1}, sample {i % 2 + 1}\n{line['prompt']}{line['text']}\n"
    assert shown.out == expected


def test_prompts_are_taken_literally(command: Command) -> None:
    for prompt in ["a=b, {c}: 'd' | (e) # f", "null", "123", "[1]", "床😀", "$x ${y}"]:
        assert command(f"prompt={prompt}", "max_new_tokens=0").out == prompt + "\n"


def test_a_prompt_from_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\n")))
    assert command("prompt_file=-").out == command("prompt=Once").out


def test_a_stop_text_ends_the_sample_and_is_not_shown(command: Command) -> None:
    free = text_of(command("prompt=Once", "format=json", "max_new_tokens=40"))
    stop = next(free[i : i + 2] for i in range(5, 39) if free[i : i + 2].isascii())
    cut = free[: free.index(stop)]
    arguments = ["prompt=Once", "max_new_tokens=40", f"stop={stop}", "stop=never there"]
    assert command(*arguments).out == f"Once{cut}\n"
    assert command(*arguments, "stream=false").out == f"Once{cut}\n"
    line = json.loads(command(*arguments, "format=json").out)
    assert (line["text"], line["reason"]) == (cut, "stop")


def test_what_is_banned_is_not_written(command: Command) -> None:
    free = text_of(command("prompt=Once", "format=json", "max_new_tokens=60"))
    letter = free[20]
    banned = command("prompt=", "echo=false", "max_new_tokens=60", f"logit_bias={letter}=-inf")
    assert letter not in banned.out
    every = [f"logit_bias_ids={i}=-inf" for i in range(257)]
    line = json.loads(command("prompt=a", "format=json", *every).out)
    assert (line["ids"], line["reason"]) == ([], "banned")


def test_each_line_of_json_has_its_own_settings(command: Command, tmp_path: Path) -> None:
    records = [
        {"prompt": "a", "id": "first", "max_new_tokens": 3, "num_samples": 2},
        {"prompt": "bc", "temperature": 0, "min_new_tokens": 5, "max_new_tokens": 5},
        {"prompt": "d", "id": 0, "seed": 9, "max_new_tokens": 0},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, records)))
    asked = ("prompt_file=p.jsonl", "prompt_format=jsonl")
    lines = [json.loads(line) for line in command(*asked, "format=json").out.splitlines()]
    assert [(line["id"], line["sample"]) for line in lines] == [
        ("first", 0), ("first", 1), (2, 0), (0, 0),
    ]  # fmt: skip
    assert [len(line["ids"]) <= n for line, n in zip(lines, (3, 3, 5, 0), strict=True)]
    assert [line["seed"] for line in lines] == [1, 1, 1, 9]
    greedy = command("prompt=bc", "temperature=0", "max_new_tokens=5", "format=json")
    assert lines[2]["ids"] == json.loads(greedy.out)["ids"]
    headings = [each for each in command(*asked).out.splitlines() if each.startswith("--- prompt")]
    assert headings[0] == "--- prompt first, sample 1"


def test_a_line_whose_settings_do_not_fit_the_model_is_named(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('\n{"prompt": "a"}\n\n{"prompt": "b", "stop_ids": [5000]}\n')
    shown = command("prompt_file=p.jsonl", "prompt_format=jsonl")
    assert (shown.status, shown.out) == (2, "")
    assert "p.jsonl, line 4: stop_ids=5000: the model has tokens 0 to 256" in shown.err


def test_thousands_of_prompts_come_out_in_order_and_are_counted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"{'ab' * (i * 37 % 11)}{i}" for i in range(1500)]
    (tmp_path / "many.txt").write_text("\n".join(prompts) + "\n")
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    shown = command(
        "prompt_file=many.txt", "format=json", "max_new_tokens=2", "output=out.jsonl",
        "dtype=float32", "min_new_tokens=1",
    )  # fmt: skip
    assert shown.status == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    assert "generating: 1500/1500 samples, " in shown.err


def test_samples_that_are_done_are_shown_when_it_is_stopped(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.txt").write_text("a\nb\nc\n")
    (tmp_path / "out.txt").write_text("as it was")
    whole = command("prompt_file=p.txt", "batch_size=1", "format=json").out.splitlines()
    real, calls = decode.decode, iter(range(9))

    def stopped(*arguments: object) -> object:
        if next(calls) % 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "decode", stopped)
    shown = command("prompt_file=p.txt", "batch_size=1", "format=json")
    assert (shown.status, shown.err) == (130, "stopped\n")
    assert json.loads(shown.out)["ids"] == json.loads(whole[0])["ids"]
    shown = command("prompt_file=p.txt", "batch_size=1", "format=json", "output=out.txt")
    assert shown.status == 130
    assert (tmp_path / "out.txt").read_text() == "as it was"


def test_an_output_file_gets_the_text_and_the_terminal_none(
    command: Command, tmp_path: Path
) -> None:
    shown = command("prompt=Once", "output=out.txt")
    assert shown.out == ""
    assert (tmp_path / "out.txt").read_bytes().decode() == command("prompt=Once").out


def test_the_opening_token_goes_by_how_the_model_was_trained(
    command: Command, checkpoint: Callable[..., Path]
) -> None:
    checkpoint("one.ckpt", documents=1)

    def line(model: str, *arguments: str) -> str:
        return text_of(command("format=json", "prompt=a", *arguments, model=model))

    with_it = line("model.ckpt", "start_of_document=true")
    without = line("model.ckpt", "start_of_document=false")
    assert with_it != without
    assert line("model.ckpt") == with_it
    assert line("one.ckpt") == without
    empty = command("format=json", model="one.ckpt")
    assert text_of(empty) == text_of(command("format=json", "start_of_document=true"))


def test_past_the_context_it_goes_on_and_says_so(command: Command) -> None:
    shown = command("prompt=ab", "max_new_tokens=60", "temperature=0", "start_of_document=false")
    assert shown.status == 0
    assert shown.err.count("past the context of 16 tokens") == 1
    uncached = command(
        "prompt=ab", "max_new_tokens=60", "temperature=0", "start_of_document=false",
        "use_cache=false",
    )  # fmt: skip
    assert uncached.out == shown.out


def test_a_prompt_beyond_the_context_says_that_its_last_part_is_used(command: Command) -> None:
    shown = command(f"prompt={'ab' * 40}", "start_of_document=false")
    assert shown.status == 0
    assert "the prompt has 80 tokens and the model reads 16: the last part is used" in shown.err


def test_the_newest_run_is_used_where_none_is_named(
    command: Command, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint("runs/a/checkpoints/best.ckpt")
    (tmp_path / "runs" / "latest").symlink_to("a")
    expected = command("prompt=Once")
    assert command("prompt=Once", model="") == expected
    assert command("prompt=Once", model="runs/latest") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoint=none"], "train.py"),
        (["context_stride=17"], "context_stride=17"),
        (["temperature=-1"], "temperature"),
        (["temperature=nan"], "temperature"),
        (["top_p=0"], "top_p"),
        (["top_k=0"], "top_k"),
        (["num_samples=0"], "num_samples"),
        (["max_new_tokens=-1"], "max_new_tokens"),
        (["min_p=1.5"], "min_p"),
        (["repetition_penalty=0"], "repetition_penalty"),
        (["presence_penalty=-3"], "presence_penalty"),
        (["frequency_penalty=inf"], "frequency_penalty"),
        (["no_repeat_ngram=0"], "no_repeat_ngram"),
        (["min_new_tokens=13"], "min_new_tokens=13: must be at most max_new_tokens=12"),
        (["logit_bias=a"], "logit_bias=a: must be"),
        (["logit_bias==1"], "logit_bias==1: must be"),
        (["logit_bias=a=inf"], "logit_bias=a=inf: must be"),
        (["logit_bias=a\udcff=1"], "logit_bias: not UTF-8"),
        (["logit_bias=a=101"], "logit_bias=a=101: a bias must be from -100 to 100"),
        (["batch_size=1000000000000000000000"], "batch_size"),
        (["logit_bias_ids=a=1"], "logit_bias_ids=a=1: must be"),
        (["logit_bias_ids=257=1"], "logit_bias_ids=257: the model has tokens 0 to 256"),
        (["stop="], "stop=: must be"),
        (["stop=a", "stop="], "stop=: must be"),
        (["stop_ids=-1"], "stop_ids=-1: must be"),
        (["stop_ids=999"], "stop_ids=999: the model has tokens 0 to 256"),
        (["batch_size=0"], "batch_size=0"),
        (["prompt_file=none.txt", "interactive=true"], "prompt_file=none.txt: not with"),
        (["format=json", "interactive=true"], "format=json: not with interactive=true"),
        (["num_samples=2", "interactive=true"], "num_samples=2: not with interactive=true"),
        (["prompt_format=csv"], "line, whole, jsonl"),
        (["prompt_file=none.txt"], "none.txt"),
        (["output=none/out.txt"], "none"),
        (["prompt=a\udcff"], "not UTF-8"),
        (["tempature=1"], "temperature"),
    ],
)
def test_what_is_wrong_gets_one_line_and_status_2(
    command: Command, arguments: list[str], message: str
) -> None:
    shown = command(*arguments, model="" if "checkpoint=none" in arguments else "model.ckpt")
    assert shown.status == 2
    assert shown.out == ""
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_character_that_the_tokenizer_has_not_seen_is_named(
    command: Command, checkpoint: Callable[..., Path]
) -> None:
    checkpoint("char.ckpt", kind="char")
    shown = command("prompt=the Z", model="char.ckpt")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith("error: the prompt: ")
    assert "'Z'" in shown.err
    shown = command("prompt=the Z", "stream=false", model="char.ckpt")
    assert shown.err.startswith("error: prompt 1: ")


def test_help_and_wrong_settings_do_not_wait_for_torch() -> None:
    code = (
        "import sys, generate; from minigpt.command_line import run\n"
        "from minigpt.generation.config import GenerateConfig as C\n"
        "assert run(generate.main, C, 'generate', ['--help']) == 0\n"
        "assert run(generate.main, C, 'generate', ['top_k=0']) == 2\n"
        "assert run(generate.main, C, 'generate', ['prompt_file=none.txt']) == 2\n"
        "assert run(generate.main, C, 'generate', ['checkpoint=none']) == 2\n"
        "heavy = {'torch', 'lightning', 'datasets', 'wandb'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, capture_output=True)
