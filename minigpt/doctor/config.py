"""Every setting of `python -m minigpt.doctor`."""

from dataclasses import dataclass, field

from minigpt.config import DataConfig, ModelConfig, TokenizerConfig
from minigpt.settings import setting

#: What the report is called.
TITLE = "Examination of a model"


@dataclass(kw_only=True, slots=True)
class DoctorConfig:
    """Everything `python -m minigpt.doctor` can be told.

    A setting of the model or the tokenizer asks for a new model, as training would begin with it.
    """

    checkpoint: str = setting(
        "",
        "a run folder, checkpoint file or Hugging Face folder; the newest run if empty",
        free_text=True,
    )
    seed: int = setting(1337, "fixes a new model's weights", low=0, high=2**32 - 1)
    report: str = setting(
        "", "file for the report as HTML; doctor.html in the run's folder if empty", free_text=True
    )
    format: str = setting("text", "of what is shown; json is one line", choices=("text", "json"))
    device: str = setting("auto", "where to run", choices=("auto", "cpu", "cuda", "mps"))
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
