"""Every setting of `python -m minigpt.data`."""

from dataclasses import dataclass, field

from minigpt.config import DataConfig, ModelConfig, OptimConfig, TokenizerConfig, TrainerConfig
from minigpt.settings import setting

#: What the report is called.
TITLE = "A look at the data"


@dataclass(kw_only=True, slots=True)
class LookConfig:
    """Everything `python -m minigpt.data` can be told.

    What stands after `train.py` to choose the data, the model or an experiment can stand here, and
    what is shown is what that run would see. Of the model only its context matters, of optim and
    trainer what divides a step; they are here for the presets.
    """

    step: int = setting(0, "the optimizer step whose batch is shown", low=0, high=10**12)
    rows: int = setting(3, "rows of that batch that are shown; the report has all", low=0)
    report: str = setting(
        "", "file for the report as HTML; none is written if empty", free_text=True
    )
    format: str = setting("text", "of what is shown; json is one line", choices=("text", "json"))
    checkpoint: str = setting(
        "",
        "a run folder, checkpoint file or Hugging Face folder: look at the data of its run, or at"
        " other data in its tokens",
        free_text=True,
    )
    seed: int = setting(1337, "fixes the data order", low=0, high=2**32 - 1)
    overfit: bool = setting(False, "show the one batch that overfit=true trains on")
    experiment: str | None = setting(None, "a preset of several settings, from conf/experiment/")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
