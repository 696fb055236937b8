"""Every setting of training: its type, default, meaning, unit and range.

The dataclasses are Hydra's schema, so a setting that is not written here cannot be set; those of
another command stand in its own room (`generation/config.py`, `doctor/config.py`). They own no
behaviour: `check` holds values against their ranges, `plain` and `from_plain` turn them into
what a file can hold and back, and `minigpt.defaults` fills the ones that depend on size or device.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

from minigpt.errors import InputError
from minigpt.settings import check_ranges, flat, nearest, set_value, setting, settings

_Schema = TypeVar("_Schema")


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The Transformer's shape, by the GPT family's names."""

    n_layer: int = setting(4, "Transformer blocks", low=1)
    n_head: int = setting(4, "attention heads in a block; must divide n_embd", low=1)
    n_embd: int = setting(128, "width of the residual stream", low=1)
    block_size: int = setting(128, "context in tokens", low=1)
    dropout: float = setting(0.0, "share of activations dropped in training", low=0.0, high=0.99)
    bias: bool = setting(True, "biases in linear layers and norms")
    position: str = setting(
        "learned",
        "where a token stands: a table, learned or sinusoidal, is added to its embedding, or its"
        " queries and keys are turned (rotary)",
        choices=("learned", "sinusoidal", "rotary"),
    )
    qk_norm: bool = setting(False, "scale each head's queries and keys to a root mean square of 1")
    norm_order: str = setting(
        "pre", "norm before each sublayer (pre) or after its residual sum (post)",
        choices=("pre", "post"),
    )  # fmt: skip
    activation: str = setting(
        "gelu", "nonlinearity of the MLP; gelu is the tanh form, relu2 is relu(x) squared",
        choices=("gelu", "relu", "relu2"),
    )  # fmt: skip
    residual_init: str = setting(
        "scaled",
        "first weights of what adds to the residual stream: GPT-2's, smaller with depth, or 0",
        choices=("scaled", "zero"),
    )


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Where documents come from and how they become batches."""

    corpus: str = setting(
        "stories", "source of documents; chosen by data=…",
        choices=("stories", "stdlib", "text", "jsonl", "csv", "parquet", "hub"),
    )  # fmt: skip
    path: list[str] = setting(
        [], "file, folder or glob of data=text, jsonl, csv or parquet; may be repeated",
        form=(r".+", "not empty"), free_text=True,
    )  # fmt: skip
    name: str = setting(
        "", "data=hub: the data set, owner/name at Hugging Face or a local folder", free_text=True
    )
    config: str = setting("", "data=hub: which of the data set's configurations", free_text=True)
    revision: str = setting("", "data=hub: a branch, tag or commit of the data set", free_text=True)
    split: str = setting("train", "data=hub: the split to train on", free_text=True)
    val_split: str = setting(
        "", "data=hub: the split to validate on; documents are held out if empty", free_text=True
    )
    streaming: bool = setting(
        False, "tokenize just ahead of training instead of before it; for what fits no disk"
    )
    shuffle_buffer: int = setting(
        10_000, "documents that data.streaming=true shuffles at a time", low=1
    )
    field: str = setting("text", "the field or column that holds a document", free_text=True)
    encoding: str = setting("utf-8", "character encoding of the user's files")
    document: str = setting(
        "file",
        "what one document of a text file is: file, line, or a text that separates documents",
        free_text=True,
    )
    max_documents: int | None = setting(
        None, "use only the first so many documents; of stories: how many to tell", low=1
    )
    val_fraction: float = setting(
        0.1, "share of the documents held out for validation", low=1e-6, high=0.9
    )
    val_path: list[str] = setting(
        [], "files held out for validation instead of val_fraction; may be repeated",
        form=(r".+", "not empty"), free_text=True,
    )  # fmt: skip
    batch_size: int | None = setting(
        None, "rows per optimizer step, over all processes and micro-batches", low=1
    )
    layout: str = setting(
        "packed",
        "rows: windows over one stream, or one document each",
        choices=("packed", "padded"),
    )
    document_mask: bool = setting(
        False, "packed rows: keep attention inside a document and restart its positions"
    )
    num_workers: int = setting(0, "processes that read batches ahead; 0 reads in place", low=0)
    cache_dir: str = setting(
        "", "where prepared corpora are kept; data/cache/ of the project if empty", free_text=True
    )


@dataclass(kw_only=True, slots=True)
class TokenizerConfig:
    """How text becomes tokens."""

    kind: str = setting(
        "bpe", "byte-level BPE, characters, bytes or another's; chosen by tokenizer=…",
        choices=("bpe", "char", "bytes", "pretrained"),
    )  # fmt: skip
    path: str = setting(
        "",
        "tokenizer=pretrained: a tokenizer.json, a folder that has one, or vocab.json with"
        " merges.txt, or a name at Hugging Face",
        free_text=True,
    )
    vocab_size: int | None = setting(
        None, "tokens of a BPE vocabulary to aim for, 256 bytes and the end token included", low=257
    )


@dataclass(kw_only=True, slots=True)
class OptimConfig:
    """The optimizer and its learning rate over optimizer steps."""

    kind: str | None = setting(
        None, "adamw, or muon for the linear layers' matrices and adamw for the rest",
        choices=("adamw", "muon"),
    )  # fmt: skip
    lr: float | None = setting(None, "peak learning rate", above=0.0)
    weight_decay: float = setting(0.1, "decay of the linear layers' matrices", low=0.0)
    beta1: float = setting(0.9, "AdamW's momentum", low=0.0, high=0.9999)
    beta2: float = setting(0.95, "AdamW's memory of squared gradients", low=0.0, high=0.99999)
    momentum: float = setting(0.95, "Muon's momentum", low=0.0, high=0.9999)
    schedule: str = setting(
        "cosine", "learning rate after warm-up; wsd holds it, then falls over the last fifth",
        choices=("cosine", "linear", "wsd", "constant"),
    )  # fmt: skip
    warmup_steps: int | None = setting(None, "steps of linear warm-up", low=0)
    decay_steps: int | None = setting(
        None, "step at which the schedule reaches its floor; trainer.max_steps if null", low=1
    )
    min_lr_ratio: float = setting(0.01, "the floor, as a share of lr", low=0.0, high=1.0)
    grad_clip: float = setting(1.0, "largest norm of the gradient; 0 leaves it alone", low=0.0)


@dataclass(kw_only=True, slots=True)
class SavingConfig:
    """When checkpoints are written, besides the end of the run."""

    every_n_steps: int | None = setting(
        None, "steps between checkpoints; with each validation if null", low=1
    )
    every_minutes: float | None = setting(None, "minutes between checkpoints, besides", above=0.0)
    keep: int = setting(0, "numbered checkpoints to keep beside best and last", low=0)


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """Lightning's Trainer arguments, by Lightning's names; a step is an optimizer step."""

    max_steps: int | None = setting(None, "optimizer steps of the run", low=1)
    accelerator: str = setting(
        "auto", "kind of device", choices=("auto", "cpu", "gpu", "cuda", "mps")
    )
    devices: str = setting(
        "1", "how many devices, or auto for all of them",
        form=(r"auto|[1-9][0-9]*", "auto or at least 1"),
    )  # fmt: skip
    num_nodes: int = setting(1, "machines that train together", low=1)
    strategy: str = setting(
        "auto", "how processes share the work; fsdp divides the model over CUDA GPUs",
        choices=("auto", "ddp", "fsdp"),
    )  # fmt: skip
    precision: str | None = setting(
        None, "arithmetic of the forward and backward pass",
        choices=("32-true", "bf16-mixed", "16-mixed", "64-true"),
    )  # fmt: skip
    accumulate_grad_batches: int = setting(
        1, "micro-batches a process divides its share of a step into", low=1
    )
    val_check_interval: int | None = setting(None, "steps between validations", low=1)
    limit_val_batches: int | None = setting(
        None, "batches of a validation during training; all if null", low=1
    )
    log_every_n_steps: int = setting(10, "steps between lines of metrics.csv", low=1)
    max_time: str | None = setting(
        None, "wall time after which to stop",
        form=(r"[0-9]+:[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}", "of the form DD:HH:MM:SS"),
    )  # fmt: skip
    deterministic: bool = setting(False, "refuse operations whose result may vary between runs")
    benchmark: bool | None = setting(None, "let cuDNN try its algorithms first")
    detect_anomaly: bool = setting(False, "name the operation that made a NaN gradient; slow")
    profiler: str | None = setting(
        None, "Lightning's profiler", choices=("simple", "advanced", "pytorch")
    )
    enable_progress_bar: bool = setting(True, "show progress")


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """The tracker beside metrics.csv."""

    kind: str = setting(
        "csv", "tracker; chosen by logger=…", choices=("csv", "wandb", "tensorboard")
    )
    project: str = setting("minigpt", "W&B project", free_text=True)
    name: str = setting("", "name of the run at W&B; the run folder's if empty", free_text=True)


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """Everything `train.py` can be told."""

    seed: int = setting(1337, "fixes weights, data order and dropout", low=0, high=2**32 - 1)
    run_dir: str = setting("", "the run's folder; a new one under runs/ if empty", free_text=True)
    resume: str = setting(
        "", "auto, a run folder or a checkpoint file to go on from", free_text=True
    )
    init_from: str = setting(
        "",
        "a run, checkpoint or Hugging Face folder whose model and tokenizer to start from",
        free_text=True,
    )
    compile: bool = setting(False, "compile the model; slow to start, then faster")
    activation_checkpointing: bool = setting(
        False, "compute a block's activations again for its gradient: less memory, more time"
    )
    sample_every_n_steps: int | None = setting(
        None, "steps between samples in samples.txt; with each validation if null", low=1
    )
    doctor: bool = setting(False, "look for faults of the model before training it")
    overfit: bool = setting(
        False, "train on one fixed batch until its loss is near zero (experiment=overfit)"
    )
    experiment: str | None = setting(None, "a preset of several settings, from conf/experiment/")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


def check(config: Any) -> None:
    """Hold every value against its type and range, and those together that depend on each other.

    The latter waits where a checkpoint is given, since the settings in it come first. Raises
    `InputError` that names the key, the value and what would be right.
    """
    check_ranges(config)
    if getattr(config, "resume", "") or getattr(config, "checkpoint", ""):
        return
    model = config if isinstance(config, ModelConfig) else getattr(config, "model", None)
    if isinstance(model, ModelConfig):
        _check_head_width(model, "" if model is config else "model.")
    data, tokenizer = getattr(config, "data", None), getattr(config, "tokenizer", None)
    if isinstance(data, DataConfig):
        _check_source(data)
        if data.streaming:
            _check_streaming(data, tokenizer)
    if isinstance(tokenizer, TokenizerConfig):
        _check_tokenizer(tokenizer)


#: Corpora that read a setting, of settings that others do not.
_READ_BY = {
    "name": ("hub",),
    "config": ("hub",),
    "revision": ("hub",),
    "split": ("hub",),
    "val_split": ("hub",),
    "document": ("text",),
    "field": ("jsonl", "csv", "parquet", "hub"),
    "encoding": ("text", "jsonl", "csv"),
}


def _check_source(data: DataConfig) -> None:
    """Refuse what names a text that the kind of corpus does not read."""
    if data.corpus in ("stories", "stdlib", "hub"):
        for name, paths in (("path", data.path), ("val_path", data.val_path)):
            if paths:
                right = "add data=text, data=jsonl, data=csv or data=parquet"
                if data.corpus == "hub":
                    right = (
                        "data.name=… names a data set or a folder laid out like one, or " + right
                    )
                raise InputError(
                    f"data.{name}={paths[0]}: data={data.corpus} reads no file of yours; {right}"
                )
    for name, corpora in _READ_BY.items():
        value = getattr(data, name)
        if data.corpus not in corpora and value != getattr(DataConfig(), name):
            raise InputError(
                f"data.{name}={value}: is not read by data={data.corpus}, but by"
                f" {' and '.join(f'data={corpus}' for corpus in corpora)}"
            )


def _check_tokenizer(tokenizer: TokenizerConfig) -> None:
    if tokenizer.kind != "pretrained" and tokenizer.path:
        raise InputError(f"tokenizer.path={tokenizer.path}: add tokenizer=pretrained")
    if tokenizer.kind == "pretrained" and tokenizer.vocab_size is not None:
        raise InputError(
            f"tokenizer.vocab_size={tokenizer.vocab_size}: tokenizer=pretrained has the tokens that"
            " it has; leave it out"
        )


def _check_streaming(data: DataConfig, tokenizer: TokenizerConfig | None) -> None:
    if data.corpus == "stories":
        raise InputError(
            "data.streaming=true: data=stories are told by the program; it is for data=hub, text,"
            " jsonl, csv or parquet"
        )
    if data.layout != "packed":
        raise InputError(f"data.layout={data.layout}: a stream has packed rows; use packed")
    if tokenizer is not None and tokenizer.kind == "char":
        raise InputError(
            "tokenizer=char: needs the characters of the whole corpus, and a stream is not read"
            " before; use tokenizer=bpe or bytes"
        )


def _check_head_width(model: ModelConfig, prefix: str) -> None:
    width, rest = divmod(model.n_embd, model.n_head)
    if rest:
        raise InputError(
            f"{prefix}n_embd={model.n_embd}: must be a multiple of {prefix}n_head={model.n_head}"
        )
    if model.position == "rotary" and width % 2:
        raise InputError(
            f"{prefix}position=rotary: turns the numbers of a head in pairs, and {prefix}n_embd="
            f"{model.n_embd} with {prefix}n_head={model.n_head} makes heads {width} wide; it must"
            " be even"
        )


def plain(config: Any) -> dict[str, Any]:
    """The settings as nested dictionaries of plain values, for YAML and for a checkpoint."""
    return dataclasses.asdict(config)


def from_plain(schema: type[_Schema], values: dict[str, Any]) -> _Schema:
    """The settings that `plain` wrote; those it lacks take their defaults.

    Raises `InputError` for a setting that does not exist or has the wrong type or range.
    """
    config = schema()
    known = {setting.key for setting in settings(schema)}
    for key, value in flat(values).items():
        if key not in known:
            raise InputError(f"unknown setting {key}; the nearest is {nearest(key, schema)}")
        set_value(config, key, value)
    check(config)
    return config
