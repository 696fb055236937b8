"""Device and arithmetic: given, chosen, or not to be had."""

import pytest
import torch

from minigpt.config import ModelConfig
from minigpt.errors import InputError
from minigpt.generation import placement
from minigpt.generation.placement import check_quantize, find_device, find_dtype, rows_that_fit
from minigpt.model.gpt import GPT


def test_what_is_asked_for_is_taken() -> None:
    assert find_device("cpu") == torch.device("cpu")
    for name in ("float32", "float64", "bfloat16", "float16"):
        assert find_dtype(name, torch.device("cpu")) == getattr(torch, name)


def test_a_gpu_is_chosen_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto").type == "cpu"
    with pytest.raises(InputError, match="device=cuda: this machine has none"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto").type == "cuda"


def test_a_cpu_and_an_old_gpu_compute_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_dtype("auto", torch.device("cpu")) == torch.float32
    for major, dtype in ((7, torch.float32), (8, torch.bfloat16)):
        capability = (major, 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert find_dtype("auto", torch.device("cuda")) == dtype


def test_float64_is_refused_where_it_does_not_exist() -> None:
    with pytest.raises(InputError, match="dtype=float64"):
        find_dtype("float64", torch.device("mps"))


def test_as_many_rows_as_memory_has_room_for() -> None:
    def rows(n_embd: int, block_size: int) -> int:
        config = ModelConfig(n_layer=12, n_head=1, n_embd=n_embd, block_size=block_size)
        with torch.device("meta"):
            return rows_that_fit(GPT(config, 50257))

    assert rows(8, 8) == 64
    # keys and values of a row: 2 * 12 * 768 * 1024 * 4 bytes, and four times the logits
    assert rows(768, 1024) == 2**30 // (2 * 12 * 768 * 1024 * 4 + 16 * 50257)
    assert rows(768, 10**6) == 1


def test_weights_of_8_bits_are_refused_where_there_is_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    check_quantize("none", torch.device("cuda"), torch.float16)
    with pytest.raises(InputError, match="not cpu with float64"):
        check_quantize("int8", cpu, torch.float64)
    with pytest.raises(InputError, match="not cuda with float32"):
        check_quantize("int8", torch.device("cuda"), torch.float32)
    monkeypatch.setattr(placement, "is_exact", lambda: True)
    check_quantize("int8", cpu, torch.float32)
    monkeypatch.setattr(placement, "is_exact", lambda: False)
    with pytest.raises(InputError, match="quantize=int8: this processor has no exact products"):
        check_quantize("int8", cpu, torch.float32)
