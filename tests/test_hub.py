"""Names on the hub: what is fetched of them, and what is said where it cannot be reached."""

import errno
import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minigpt import hub
from minigpt.data.tokenizer_files import pretrained_tokenizer
from minigpt.errors import InputError, RunError
from tests.data.foreign_tokenizers import made

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A hub that cannot be reached; gives the folder of its cache, in an empty one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[dict[str, Any]]]:
    """Answers for the hub with a folder, or raises; gives what it was asked."""

    def answer(given: object) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def download(name: str, **settings: Any) -> str:
            calls.append({"name": name, **settings})
            if isinstance(given, BaseException):
                raise given
            return str(given)

        monkeypatch.setattr(huggingface_hub, "model_info", lambda _, timeout: timeout)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return calls

    return answer


@pytest.mark.parametrize("name", ["gpt2", "someone/tokenizer-of-3.1"])
def test_a_tokenizer_where_the_hub_cannot_be_reached(offline: Path, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(InputError) as caught:
        pretrained_tokenizer(name)
    assert time.monotonic() - began < 5
    said = str(caught.value)
    assert said.startswith(f"tokenizer.path={name}: no such file or folder here, and the Hugging")
    assert said.endswith("; give the path of a copy of its tokenizer.json")
    assert "cannot be reached (" in said
    assert "\n" not in said
    assert not offline.exists()


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A network that takes what is sent and says nothing."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "_PATIENCE", 0.2)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        began = time.monotonic()
        with pytest.raises(InputError, match=r"cannot be reached \(.*timed out\); give the path"):
            pretrained_tokenizer("gpt2")
        assert time.monotonic() - began < 5


def test_a_tokenizer_that_is_in_the_hubs_cache(offline: Path) -> None:
    folder = offline / "models--someone--model" / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("c0ffee")
    inner = made()
    inner.save(str(folder / "tokenizer.json"))
    tokenizer = pretrained_tokenizer("someone/model")
    assert tokenizer.end_id == inner.token_to_id("<|end_of_text|>")
    assert tokenizer.encode("The cat's") == inner.encode("The cat's").ids


def test_only_the_tokenizers_files_are_fetched(
    tmp_path: Path, asked: Callable[[object], list[dict[str, Any]]]
) -> None:
    made(special=["</s>", "[EOS]"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[EOS]"}))
    calls = asked(tmp_path)
    assert pretrained_tokenizer("someone/model").end == "[EOS]"
    (call,) = calls
    assert call["name"] == "someone/model"
    assert sorted(call["allow_patterns"]) == [
        "added_tokens.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    assert not call["local_files_only"]


def test_a_model_there_without_a_tokenizer(
    tmp_path: Path, asked: Callable[[object], list[dict[str, Any]]]
) -> None:
    asked(tmp_path)
    with pytest.raises(InputError) as caught:
        pretrained_tokenizer("someone/model")
    assert str(caught.value) == (
        "tokenizer.path=someone/model: has no tokenizer.json, and no vocab.json with merges.txt"
    )


def test_a_name_that_the_hub_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    def unknown(name: str, timeout: float) -> None:
        del name, timeout
        raise RepositoryNotFoundError("404", response=SimpleNamespace(headers={}, request=None))  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(huggingface_hub, "model_info", unknown)
    with pytest.raises(InputError, match=r"a/b: no such file or folder here, and no such public"):
        pretrained_tokenizer("a/b")


def test_a_cache_that_takes_no_more(asked: Callable[[object], list[dict[str, Any]]]) -> None:
    asked(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(RunError, match=r"a/b: cannot be kept in the hub's cache: .*No space left"):
        pretrained_tokenizer("a/b")


def test_a_model_is_asked_for_the_tokenizers_files_too(
    tmp_path: Path, asked: Callable[[object], list[dict[str, Any]]]
) -> None:
    calls = asked(tmp_path)
    assert hub.hub_folder("gpt2") == tmp_path
    assert [set(hub.TOKENIZER_FILES) < set(call["allow_patterns"]) for call in calls] == [True] * 2
    assert [hub.WEIGHTS[0] in call["allow_patterns"] for call in calls] == [True, False]
    calls.clear()
    (tmp_path / "model.safetensors").touch()
    hub.hub_folder("gpt2")
    assert len(calls) == 1


def test_what_is_here_is_not_looked_for_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[object], list[dict[str, Any]]],
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = asked(AssertionError("the hub was asked"))
    made().save("gpt2")
    assert pretrained_tokenizer("gpt2").end == "<|end_of_text|>"
    shutil.copy("gpt2", "tokenizer.json")
    assert pretrained_tokenizer(".").end == "<|end_of_text|>"
    for place in ("runs/mine", "missing/tokenizer.json", "./owner/name", "a/b/c"):
        with pytest.raises(InputError, match="no such file or folder; "):
            pretrained_tokenizer(place)
    assert calls == []
