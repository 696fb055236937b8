"""What a corpus is, and the split of documents into training and validation."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from minigpt.config import DataConfig
from minigpt.errors import InputError

#: Reads or tells documents, anew at each call.
Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents for training and for validation.

    `identity` is a digest of all documents and of the split. `n_documents` counts those of both
    parts (one that is cut between them counts once), `n_blank` those left out because they hold
    nothing but white space, `n_skipped` the files left out because they are not text.
    `log_probability` gives the exact log-probability of a document, in nats, where it is known.
    """

    name: str
    identity: str
    train: Documents
    validation: Documents
    n_documents: int
    n_blank: int = 0
    n_skipped: int = 0
    log_probability: Callable[[str], float] | None = None

    @property
    def left_out(self) -> dict[str, int]:
        """How many of what were left out, in the singular: blank documents, binary files."""
        return {"blank one": self.n_blank, "binary file": self.n_skipped}

    def summary(self) -> str:
        """One line about what was found."""
        left_out = [counted(count, what) for what, count in self.left_out.items() if count]
        tail = f" ({' and '.join(left_out)} left out)" if left_out else ""
        return f"corpus {self.name}: {counted(self.n_documents, 'document')}{tail}"


@dataclass(slots=True)
class _Scan:
    """What one pass over documents finds."""

    n_documents: int = 0
    n_blank: int = 0
    n_characters: int = 0
    #: characters before the cut, where every document is cut by position
    n_before: int = 0
    digest: str = ""


def split_corpus(
    name: str,
    where: str,
    documents: Documents,
    config: DataConfig,
    *,
    held_out: Documents | None = None,
    n_skipped: int = 0,
) -> Corpus:
    """Divide documents into training and validation, after one pass that counts them.

    Blank documents are left out first, then `max_documents` limits the rest. With `held_out`
    those documents are the validation part and all others are trained on. Otherwise document i
    is held out where (i + 1)·f passes a whole number that i·f has not (f = `val_fraction`): whole
    documents, evenly spread. Where they are too few for one, each is cut by position and its last
    share f is held out. Of f = 0 the validation part is empty.

    Raises `InputError`, which `where` begins, if a part would be empty.
    """
    fraction, limit = config.val_fraction, config.max_documents
    found = _scan(documents, limit, fraction)
    if not found.n_documents:
        raise InputError(f"{where}: {_nothing(found)}")
    held = _Scan()
    documents = _usable(documents, limit)
    if held_out is not None:
        held = _scan(held_out, None, fraction)
        if not held.n_documents:
            raise InputError(f"data.val_path={', '.join(config.val_path)}: {_nothing(held)}")
        parts = documents, _usable(held_out, None)
    elif fraction == 0:  # no setting says so: they are there to be measured on
        parts = documents, lambda: iter(())
    elif int(found.n_documents * fraction) >= 1:
        parts = (
            _whole(documents, fraction, held=False),
            _whole(documents, fraction, held=True),
        )
    elif int(found.n_characters * fraction) >= 1 and found.n_before:
        parts = _cut(documents, fraction, after=False), _cut(documents, fraction, after=True)
    else:
        needed = math.ceil(1 / min(fraction, 1 - fraction))
        raise InputError(
            f"{where}: too short: {counted(found.n_documents, 'document')} of"
            f" {counted(found.n_characters, 'character')}, and to hold out"
            f" data.val_fraction={fraction:g} of them at least {needed} are needed"
        )
    return Corpus(
        name=name,
        identity=f"{found.digest} {held.digest or fraction}",
        train=parts[0],
        validation=parts[1],
        n_documents=found.n_documents + held.n_documents,
        n_blank=found.n_blank + held.n_blank,
        n_skipped=n_skipped,
    )


def _scan(documents: Documents, limit: int | None, fraction: float) -> _Scan:
    found = _Scan()
    digest = hashlib.sha256()
    for text in documents():
        if not text.strip():
            found.n_blank += 1
            continue
        if found.n_documents == limit:
            break
        found.n_documents += 1
        found.n_characters += len(text)
        found.n_before += _place_of_cut(text, fraction)
        content = text.encode()
        digest.update(b"%d " % len(content))
        digest.update(content)
    found.digest = digest.hexdigest()
    return found


def _usable(documents: Documents, limit: int | None) -> Documents:
    return lambda: islice((text for text in documents() if text.strip()), limit)


def _whole(documents: Documents, fraction: float, *, held: bool) -> Documents:
    """The documents of one part, where each is in one part as a whole."""

    def part() -> Iterator[str]:
        for i, text in enumerate(documents()):
            if (int((i + 1) * fraction) > int(i * fraction)) == held:
                yield text

    return part


def _cut(documents: Documents, fraction: float, *, after: bool) -> Documents:
    """What stands before or after the cut in each document."""

    def part() -> Iterator[str]:
        for text in documents():
            place = _place_of_cut(text, fraction)
            if piece := text[place:] if after else text[:place]:
                yield piece

    return part


def _place_of_cut(text: str, fraction: float) -> int:
    return int(len(text) * (1 - fraction))


def _nothing(found: _Scan) -> str:
    return f"no text in it ({counted(found.n_blank, 'blank document')} and no other)"


def counted(number: int, what: str) -> str:
    """How many there are: `1 document`, `1,000 documents`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
