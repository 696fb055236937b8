"""Which model is looked at, and the batch it is looked at with."""

from collections.abc import Callable

import numpy as np
import torch

from minigpt import defaults
from minigpt.checkpoint import LoadedModel
from minigpt.config import TrainConfig
from minigpt.data.batches import TrainingBatches
from minigpt.data.preparation import prepare
from minigpt.data.token_store import TokenStore
from minigpt.doctor.config import DoctorConfig
from minigpt.doctor.finding import Subject
from minigpt.errors import InputError
from minigpt.evaluate.data import data_is_named, run_settings
from minigpt.model.gpt import GPT

#: Rows of the batch that is looked at.
ROWS = 8


def trained_subject(
    loaded: LoadedModel, config: DoctorConfig, named: frozenset[str], say: Callable[[str], None]
) -> Subject:
    """The model of a checkpoint or of a Hugging Face folder, with the data of its run.

    Settings of the data that are in `named` are put over the run's. Where there is no data, or it
    is gone, and no other is named, tokens drawn at random stand in for it.
    """
    model, tokenizer, record = loaded.model, loaded.tokenizer, loaded.record
    settings = run_settings(record, config.data, named)
    stand_in = random_store(model.vocab_size, tokenizer.end_id)
    if "config" not in record and not data_is_named(named):
        what = "tokens drawn at random: the model brings no data; data=… names some"
        return _subject(model, stand_in, what, settings, fresh=False)
    try:
        prepared = prepare(settings.data, tokenizer, say=say)
    except InputError as error:
        if any(key.startswith("data.") for key in named):
            raise
        what = f"tokens drawn at random stand in for the run's: {error}"
        return _subject(model, stand_in, what, settings, fresh=False)
    what = prepared.corpus.summary()
    if "data" in record and prepared.folder.name != record["data"]:
        what += "; not the run's own data"
    return _subject(model, prepared.train, what, settings, fresh=False)


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
