"""generate.py from a checkpoint of random weights: what is printed where, and what is refused."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import generate
from minigpt.checkpoint import MODEL_PREFIX, RECORD, load_model, write_checkpoint
from minigpt.command_line import run
from minigpt.config import GenerateConfig, ModelConfig, TokenizerConfig, plain
from minigpt.data.tokenizer import train_tokenizer
from minigpt.model.gpt import GPT

PROJECT = Path(generate.__file__).parent
BLOCK_SIZE = 16


@dataclass
class Shown:
    """What a run of the command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Shown]


def make_checkpoint(path: Path, kind: str = "bytes", documents: int = 5) -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), ["the alphabet of this corpus"])
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=BLOCK_SIZE)
    model = GPT(config, tokenizer.vocab_size)
    record = {
        "model_config": plain(config),
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "documents": documents,
    }
    weights = {MODEL_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, {"state_dict": weights, RECORD: record})


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run generate.py in a folder where `model.ckpt` is a checkpoint; float64, so that it is
    exact."""
    monkeypatch.chdir(tmp_path)
    make_checkpoint(tmp_path / "model.ckpt")

    def call(*arguments: str, checkpoint: str = "model.ckpt") -> Shown:
        argv = ["dtype=float64", "seed=1", "max_new_tokens=12", *arguments]
        if checkpoint:
            argv.append(f"checkpoint={checkpoint}")
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
    assert (line["seed"], line["sample"]) == (7, 0)
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


def test_an_output_file_gets_the_text_and_the_terminal_none(
    command: Command, tmp_path: Path
) -> None:
    shown = command("prompt=Once", "output=out.txt")
    assert shown.out == ""
    assert (tmp_path / "out.txt").read_bytes().decode() == command("prompt=Once").out


def test_the_opening_token_goes_by_how_the_model_was_trained(
    command: Command, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "one.ckpt", documents=1)

    def line(checkpoint: str, *arguments: str) -> str:
        return text_of(command("format=json", "prompt=a", *arguments, checkpoint=checkpoint))

    with_it = line("model.ckpt", "start_of_document=true")
    without = line("model.ckpt", "start_of_document=false")
    assert with_it != without
    assert line("model.ckpt") == with_it
    assert line("one.ckpt") == without
    empty = command("format=json", checkpoint="one.ckpt")
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
    assert "prompt 1 has 80 tokens and the model reads 16: its last part is used" in shown.err


def test_the_newest_run_is_used_where_none_is_named(command: Command, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "runs" / "a" / "checkpoints" / "best.ckpt")
    (tmp_path / "runs" / "latest").symlink_to("a")
    expected = command("prompt=Once")
    assert command("prompt=Once", checkpoint="") == expected
    assert command("prompt=Once", checkpoint="runs/latest") == expected


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
        (["prompt_file=none.txt"], "none.txt"),
        (["output=none/out.txt"], "none"),
        (["prompt=a\udcff"], "not UTF-8"),
        (["tempature=1"], "temperature"),
    ],
)
def test_what_is_wrong_gets_one_line_and_status_2(
    command: Command, arguments: list[str], message: str
) -> None:
    shown = command(*arguments, checkpoint="" if "checkpoint=none" in arguments else "model.ckpt")
    assert shown.status == 2
    assert shown.out == ""
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_character_that_the_tokenizer_has_not_seen_is_named(
    command: Command, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "char.ckpt", kind="char")
    shown = command("prompt=the Z", checkpoint="char.ckpt")
    assert (shown.status, shown.out) == (2, "")
    assert "prompt 1" in shown.err
    assert "'Z'" in shown.err


def test_help_and_wrong_settings_do_not_wait_for_torch() -> None:
    code = (
        "import sys, generate; from minigpt.command_line import run\n"
        "from minigpt.config import GenerateConfig as C\n"
        "assert run(generate.main, C, 'generate', ['--help']) == 0\n"
        "assert run(generate.main, C, 'generate', ['top_k=0']) == 2\n"
        "assert run(generate.main, C, 'generate', ['prompt_file=none.txt']) == 2\n"
        "assert run(generate.main, C, 'generate', ['checkpoint=none']) == 2\n"
        "heavy = {'torch', 'lightning', 'datasets', 'wandb'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, capture_output=True)
