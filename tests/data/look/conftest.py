"""A corpus of a few lines, looked at."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from minigpt.config import DataConfig, ModelConfig, TokenizerConfig, TrainConfig
from minigpt.data.look.found import Found, look
from minigpt.data.preparation import prepare

LINES = [f"the sea {i} of stars, é猫 {'and wind ' * (i % 5)}" for i in range(40)]

Look = Callable[..., Found]


@pytest.fixture
def looked(tmp_path: Path) -> Look:
    """Looks at texts, one document each; further arguments are settings of the data."""

    def at(
        texts: Sequence[str] = LINES,
        *,
        kind: str = "bpe",
        step: int = 0,
        block_size: int = 16,
        overfit: bool = False,
        **settings: Any,
    ) -> Found:
        (tmp_path / "my.txt").write_text("\n@@\n".join(texts), "utf-8")
        settings = {"batch_size": 6, "layout": "packed"} | settings
        data = DataConfig(
            corpus="text",
            path=[str(tmp_path / "my.txt")],
            document="\n@@\n" if len(texts) > 1 else "file",
            cache_dir=str(tmp_path / "cache"),
            **settings,
        )
        config = TrainConfig(data=data, model=ModelConfig(block_size=block_size), overfit=overfit)
        tokenizer = TokenizerConfig(kind=kind, vocab_size=300 if kind == "bpe" else None)
        prepared = prepare(data, tokenizer, say=lambda _: None)
        return look(prepared, config, step, lambda _: None)

    return at
