"""Which model is looked at, and the batch it is looked at with."""

from collections.abc import Callable

import numpy as np
import torch

from minigpt import defaults
from minigpt.checkpoint import LoadedModel
from minigpt.config import TrainConfig, check, from_plain
from minigpt.data.batches import TrainingBatches
from minigpt.data.token_store import TokenStore, prepare
from minigpt.doctor.config import DoctorConfig
from minigpt.doctor.finding import Subject
from minigpt.errors import InputError
from minigpt.model.gpt import GPT
from minigpt.settings import set_value, value_of

#: Rows of the batch that is looked at.
ROWS = 8


def trained_subject(
    loaded: LoadedModel, config: DoctorConfig, named: frozenset[str], say: Callable[[str], None]
) -> Subject:
    """The model of a checkpoint, with the data of its run.

    The data's settings are those that the run was saved with, those in `named` put over them. Where
    the data is gone and no other is named, tokens drawn at random stand in for it.
    """
    saved = from_plain(TrainConfig, loaded.record["config"] | {"resume": ""})
    chosen = sorted(key for key in named if key.startswith("data."))
    for key in chosen:
        set_value(saved, key, value_of(config, key))
    check(saved)
    try:
        prepared = prepare(saved.data, loaded.tokenizer, say=say)
    except InputError as error:
        if chosen:
            raise
        what = f"tokens drawn at random stand in for the run's: {error}"
        store = random_store(loaded.model.vocab_size, loaded.tokenizer.end_id)
        return _subject(loaded.model, store, what, saved, fresh=False)
    what = prepared.corpus.summary()
    if prepared.folder.name != loaded.record["data"]:
        what += "; not what the model was trained on"
    return _subject(loaded.model, prepared.train, what, saved, fresh=False)


def new_subject(config: DoctorConfig, device: torch.device, say: Callable[[str], None]) -> Subject:
    """A model as training begins with it."""
    settings = defaults.fill(
        TrainConfig(
            seed=config.seed, model=config.model, data=config.data, tokenizer=config.tokenizer
        ),
        defaults.find_device(device.type),
    )
    prepared = prepare(settings.data, settings.tokenizer, say=say)
    torch.manual_seed(settings.seed)
    model = GPT(settings.model, prepared.tokenizer.vocab_size).to(device)
    return _subject(model, prepared.train, prepared.corpus.summary(), settings, fresh=True)


def _subject(
    model: GPT, store: TokenStore, data: str, config: TrainConfig, *, fresh: bool
) -> Subject:
    batches = TrainingBatches(
        store,
        block_size=model.config.block_size,
        layout=config.data.layout,
        batch_size=ROWS,
        seed=config.seed,
        document_mask=config.data.document_mask,
    )
    return Subject.of(model, batches[0], fresh=fresh, store=store, data=data)


def random_store(vocab_size: int, end_id: int) -> TokenStore:
    """A stream of documents of random tokens: for a look at a model whose text is not there."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(8, 128, size=256)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts[1:] = lengths.cumsum()
    tokens = draw.integers(vocab_size, size=int(starts[-1]) + 1, dtype=np.uint32)
    tokens[starts] = end_id
    return TokenStore(tokens, starts, n_bytes=0)
