"""The command line's items, sorted by what they mean, before anything composes.

Every item is `key=value`. A value is read by its setting's type, so that nobody has to know any
quoting: prompts and paths are literal text, `1e-4` is a number where a number is wanted.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from minigpt.composition import groups, presets
from minigpt.errors import InputError
from minigpt.settings import nearest, read_value, settings

MULTIRUN = ("-m", "--multirun")

#: Lightning's Trainer arguments that would break a promise of this program, and what to use.
REFUSED_TRAINER_ARGUMENTS = {
    "barebones": "it switches off what the run's record is made of",
    "callbacks": "callbacks are code; the run's own are in minigpt/training/callbacks.py",
    "check_val_every_n_epoch": "training has no epochs; use trainer.val_check_interval (steps)",
    "default_root_dir": "use run_dir",
    "enable_autolog_hparams": "the whole config is recorded in config.yaml",
    "enable_checkpointing": "every run can be resumed; use saving.every_n_steps",
    "enable_model_summary": "the plan before the first step shows the model's size",
    "fast_dev_run": "use trainer.max_steps=1",
    "gradient_clip_algorithm": "the norm is clipped; use optim.grad_clip",
    "gradient_clip_val": "use optim.grad_clip",
    "inference_mode": "validation never records gradients",
    "limit_predict_batches": "use generate.py",
    "limit_test_batches": "use trainer.limit_val_batches",
    "limit_train_batches": "use trainer.max_steps",
    "logger": "use logger=csv, wandb or tensorboard",
    "max_epochs": "training order is one endless sequence; use trainer.max_steps",
    "min_epochs": "training order is one endless sequence; use trainer.max_steps",
    "min_steps": "use trainer.max_steps",
    "model_registry": "checkpoints stay in the run folder",
    "num_sanity_val_steps": "the first validation is a real one; use trainer.val_check_interval",
    "overfit_batches": "use experiment=overfit",
    "plugins": "plugins are code; precision and devices have settings of their own",
    "reload_dataloaders_every_n_epochs": "training order is one endless sequence",
    "sync_batchnorm": "the model has no batch norm",
    "use_distributed_sampler": "the data order is already divided over processes",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line: presets by group, and values by key; those of free text as they came."""

    multirun: bool = False
    choices: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    values: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])

    def items(self) -> Iterator[str]:
        """The command line that means this."""
        for key, value in (self.choices | self.values).items():
            yield f"{key}={value}"
        for key, texts in self.texts.items():
            for text in texts:
                yield f"{key}={text}"


def read_arguments(argv: list[str], schema: type, config_name: str) -> Arguments:
    """Sort the items of a command line.

    Raises `InputError` for an item that is not key=value, names no setting, or names no preset.
    """
    known = {setting.key: setting for setting in settings(schema)}
    command_groups = groups(config_name)
    arguments = Arguments(multirun=not set(argv).isdisjoint(MULTIRUN))
    for item in argv:
        if item in MULTIRUN:
            continue
        written, equals, value = item.partition("=")
        key = written.lstrip("+")
        if not equals or written.startswith(("-", "~")):
            raise _not_key_value(item, schema, command_groups)
        if key in command_groups:
            arguments.choices[key] = value
        elif key not in known:
            raise _unknown(key, value, list(known), schema)
        elif known[key].free_text:
            earlier = arguments.texts.get(key, []) if known[key].repeatable else []
            arguments.texts[key] = [*earlier, value]
        else:
            arguments.values[key] = value
    return arguments


def _not_key_value(item: str, schema: type, command_groups: Iterable[str]) -> InputError:
    """The error for an item such as `small`, `--lr`, `~model` or `Once upon a time`."""
    rule = f"{item}: everything is key=value"
    keys = {setting.key for setting in settings(schema)}
    if item.startswith("~"):
        return InputError(f"{item}: a setting cannot be removed; give it another value")
    if item.startswith("-"):
        name, equals, value = item.lstrip("-").replace("-", "_").partition("=")
        name = name if name in keys else nearest(name, schema)
        return InputError(f"{rule}; write {name}={value if equals else '…'} (--help lists all)")
    for group in command_groups:
        if item in presets(group):
            return InputError(f"{rule}; write {group}={item}")
    if item in keys:
        return InputError(f"{rule}; write {item}=…")
    text_key = next(key for key in ("prompt", "checkpoint", "data.path") if key in keys)
    return InputError(
        f'{rule}; if it is a {text_key.rpartition(".")[2]}, write {text_key}="{item}"'
    )


def _unknown(key: str, value: str, known: list[str], schema: type) -> InputError:
    """The error for a key that is no setting: refused, a group without presets, or misspelt."""
    refused = REFUSED_TRAINER_ARGUMENTS.get(key.removeprefix("trainer."))
    if refused and "trainer.max_steps" in known:
        return InputError(f"{key}={value}: not available: {refused}")
    members = [name for name in known if name.startswith(f"{key}.")]
    if members:
        return InputError(f"{key}={value}: {key} has no presets, only {', '.join(members)}")
    return InputError(
        f"unknown setting {key}; the nearest is {nearest(key, schema)} (--help lists all)"
    )


def check_single(arguments: Arguments, schema: type, config_name: str) -> None:
    """Hold the presets named against those there are, and the values against their types.

    Raises `InputError`; where several values stand with commas, it explains sweeps.
    """
    known = {setting.key: setting for setting in settings(schema)}
    if config_name == "train":
        for key, text in (arguments.choices | arguments.values).items():
            if "," in text:  # in no value of a setting that is not free text
                raise InputError(
                    f"{key}={text}: several values make a sweep: python train.py -m {key}={text}"
                )
    for group, preset in arguments.choices.items():
        if preset not in presets(group):
            raise InputError(f"{group}={preset}: must be one of {', '.join(presets(group))}")
    for key, text in arguments.values.items():
        read_value(known[key], text)


def sweep(arguments: Arguments) -> list[tuple[Arguments, str]]:
    """Every combination of the values that are lists (`a,b`, `choice(a,b)`, `range(1,4)`).

    Each comes with the words for what it chose, e.g. `model=tiny optim.lr=0.001`. Free text is
    never swept. Raises `InputError` for a list that cannot be read.
    """
    plain = arguments.choices | arguments.values
    lists = {key: _values_of(key, text) for key, text in plain.items()}
    jobs: list[tuple[Arguments, str]] = []
    for combination in product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        job = dataclasses.replace(
            arguments,
            multirun=False,
            texts=dict(arguments.texts),
            choices={key: chosen[key] for key in arguments.choices},
            values={key: chosen[key] for key in arguments.values},
        )
        swept = (f"{key}={chosen[key]}" for key in lists if len(lists[key]) > 1)
        jobs.append((job, " ".join(swept)))
    return jobs


def _values_of(key: str, text: str) -> list[str]:
    """The values in a sweep's list, by Hydra's grammar; a text that is no list is its own."""
    if not any(mark in text for mark in ",("):
        return [text]
    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
        if not override.is_sweep_override():
            return [text]
        return list(override.sweep_string_iterator())
    except (HydraException, ValueError, TypeError) as error:
        raise InputError(f"{key}={text}: not a list of values; write a,b or range(1,4)") from error
