"""Every setting of `python -m minigpt.evaluate`."""

from dataclasses import dataclass, field

from minigpt.config import DataConfig
from minigpt.settings import setting

#: What the report is called.
TITLE = "Evaluation of a model"


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Everything `python -m minigpt.evaluate` can be told.

    The data is that of the model's own run, with what `data=` and `data.path=` and the like name
    put over it; a Hugging Face folder brings none.
    """

    checkpoint: str = setting(
        "",
        "a run folder, checkpoint file or Hugging Face folder; the newest run if empty",
        free_text=True,
    )
    compare: str = setting(
        "", "a second model, to be measured on the same documents", free_text=True
    )
    split: str | None = setting(
        None,
        "which part of the data; if null, validation for the run's own data and the built-in"
        " corpora, all of any other",
        choices=("validation", "train", "all"),
    )
    stride: int | None = setting(
        None,
        "tokens by which the window moves in a document that is longer than the context; half the"
        " context if null",
        low=1,
    )
    score_end: bool = setting(True, "the end of a document is a token to predict, too")
    bootstrap: int = setting(
        1000, "resamples of the documents that intervals are made from; 0 for none",
        low=0, high=100_000,
    )  # fmt: skip
    confidence: float = setting(0.95, "of the intervals", low=0.5, high=0.9999)
    samples: int = setting(
        200, "stories to sample and judge, where data=stories; 0 for none", low=0, high=10_000
    )
    seed: int = setting(1337, "fixes the resamples and the samples", low=0, high=2**32 - 1)
    report: str = setting(
        "",
        "file for the report as HTML; if empty, evaluation.html in the run's folder, or here for a"
        " Hugging Face folder",
        free_text=True,
    )
    shown_documents: int = setting(
        10, "most and least expected documents in the report, of each", low=0, high=100
    )
    documents: str = setting(
        "", "file for what was measured of each document, a line of JSON each", free_text=True
    )
    format: str = setting("text", "of what is shown; json is one line", choices=("text", "json"))
    device: str = setting("auto", "where to run", choices=("auto", "cpu", "cuda", "mps"))
    dtype: str = setting(
        "float32", "arithmetic; auto is bfloat16 on a GPU that has it, else float32",
        choices=("auto", "float32", "float64", "bfloat16", "float16"),
    )  # fmt: skip
    quantize: str = setting(
        "none", "int8 rounds the model's weights to 8 bits, but not those of compare=: so a model"
        " that is compared with itself shows what it costs", choices=("none", "int8"),
    )  # fmt: skip
    batch_size: int | None = setting(
        None, "windows read side by side; by the memory they take if null", low=1, high=100_000
    )
    data: DataConfig = field(default_factory=DataConfig)
