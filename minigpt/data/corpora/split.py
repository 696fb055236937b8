"""The split of documents into training and validation, before anything is cut into rows."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.cache import LARGE, digest, keep, recall
from minigpt.data.corpora.corpus import Corpus, Documents, Part, Source, counted, whole
from minigpt.errors import InputError
from minigpt.progress import Count


@dataclass(slots=True)
class _Scan:
    """What one pass over documents finds; `lengths` in characters, where they are few."""

    n_documents: int = 0
    n_blank: int = 0
    n_characters: int = 0
    n_bytes: int = 0
    n_held: int = 0
    lengths: list[int] = field(default_factory=list[int])


#: What is kept of a pass, with values of the right types.
_KNOWN = asdict(_Scan())


def split_corpus(
    config: DataConfig, source: Source, held_out: Source | None = None, *, cache: Path
) -> Corpus:
    """Divide documents into training and validation, after one pass that counts them.

    Blank documents are left out first, then `max_documents` limits the rest. With `held_out`
    those documents are the validation part and all others are trained on. Otherwise, of a share
    f = `val_fraction`, whole documents are held out: of a hub's data set those that `is_held` says,
    if it does of some, else document i where (i + 1)·f passes a whole number that i·f has not.
    Where they are too few for one, each is cut by position and its last share f is held out. Of
    f = 0 the validation part is empty. What the pass found is kept in `cache`.

    Raises `InputError` if a part would be empty.
    """
    fraction, limit = config.val_fraction, config.max_documents

    def identities() -> list[str]:
        return [each.identity(cache) for each in (source, held_out) if each]

    texts = identities()
    by_text = config.corpus == "hub"
    found = _remembered(source, limit, fraction, texts[0], cache, by_text=by_text)
    held = _Scan()
    documents = partial(usable, source.documents, limit)
    if held_out is not None:
        held = _remembered(held_out, None, fraction, texts[1], cache)
        parts = documents, partial(usable, held_out.documents, None)
    else:
        parts = _divided(documents, found, fraction, source.where, by_text=by_text)
    n_skipped = source.n_skipped + (held_out.n_skipped if held_out else 0)
    return Corpus(
        name=config.corpus,
        text=digest(texts),
        text_now=lambda: digest(identities()),
        division=digest([limit, None if held_out else fraction]),
        train=parts[0],
        validation=parts[1],
        n_documents=found.n_documents + held.n_documents,
        n_bytes=found.n_bytes + held.n_bytes,
        note=source.note,
        left_out={"blank one": found.n_blank + held.n_blank, "binary file": n_skipped},
    )


def _divided(
    documents: Documents, found: _Scan, fraction: float, where: str, *, by_text: bool
) -> tuple[Documents, Documents]:
    """The training and the validation part of documents that no setting divides."""
    if fraction == 0:  # no setting says so: they are there to be measured on
        return documents, lambda: iter(())
    by_text = by_text and 0 < found.n_held < found.n_documents
    if by_text or int(found.n_documents * fraction) >= 1:
        divide = _by_text if by_text else _evenly
        return (
            partial(divide, documents, fraction, held=False),
            partial(divide, documents, fraction, held=True),
        )
    places = [_place_of_cut(length, fraction) for length in found.lengths]
    if int(found.n_characters * fraction) >= 1 and any(places):
        return partial(_cut, documents, places, after=False), partial(
            _cut, documents, places, after=True
        )
    needed = math.ceil(1 / min(fraction, 1 - fraction))
    raise InputError(
        f"{where}: too short: {counted(found.n_documents, 'document')} of"
        f" {counted(found.n_characters, 'character')}, and to hold out"
        f" data.val_fraction={fraction:g} of them at least {needed} are needed"
    )


def _remembered(
    source: Source,
    limit: int | None,
    fraction: float,
    identity: str,
    cache: Path,
    *,
    by_text: bool = False,
) -> _Scan:
    """What a pass over the documents finds, now or when the same ones were read before.

    Raises `InputError` if there is no text.
    """
    key = digest([identity, limit, fraction])
    known = recall(cache, key)
    if known.keys() == _KNOWN.keys() and all(
        type(value) is type(_KNOWN[name]) for name, value in known.items()
    ):
        return _Scan(**known)
    found = _scan(source.documents, limit, fraction, by_text=by_text)
    if not found.n_documents:
        blank = counted(found.n_blank, "blank document")
        raise InputError(f"{source.where}: no text in it ({blank} and no other)")
    if found.n_bytes >= LARGE and source.identity(cache) == identity:
        keep(cache, key, asdict(found), found.n_bytes)
    return found


def _scan(documents: Documents, limit: int | None, fraction: float, *, by_text: bool) -> _Scan:
    found = _Scan()
    blank, length, size = True, 0, 0
    hashed = hashlib.blake2b(digest_size=8)
    count = Count(None, "reading", "B")
    for text, last in documents():
        content = text.encode()
        blank = blank and not text.strip()
        length, size = length + len(text), size + len(content)
        count.add(len(content))
        if by_text:
            hashed.update(content)
        if not last:
            continue
        if blank:
            found.n_blank += 1
        elif found.n_documents == limit:
            break
        else:
            found.n_documents += 1
            found.n_characters += length
            found.n_bytes += size
            found.n_held += by_text and _below(hashed.digest(), fraction)
            if found.n_documents * fraction < 1:
                found.lengths.append(length)
        blank, length, size, hashed = True, 0, 0, hashlib.blake2b(digest_size=8)
    count.close()
    if found.n_documents * fraction >= 1:
        found.lengths.clear()
    return found


def is_held(text: str, fraction: float) -> bool:
    """Whether a document is held out by its text, and so all that are like it."""
    return _below(hashlib.blake2b(text.encode(), digest_size=8).digest(), fraction)


def _below(hashed: bytes, fraction: float) -> bool:
    return int.from_bytes(hashed, "big") < fraction * 2**64


def usable(documents: Documents, limit: int | None) -> Iterator[Part]:
    """The documents that are not blank, the first `limit` of them."""
    n_documents = 0
    waiting: list[Part] = []  # the beginning of one that may be blank
    begun = False
    for part in documents():
        if not begun and not part.text.strip():
            waiting.append(part)
            if part.last:
                waiting.clear()
            continue
        if not begun and n_documents == limit:
            return
        begun = not part.last
        n_documents += part.last
        yield from waiting
        waiting.clear()
        yield part


def _evenly(documents: Documents, fraction: float, *, held: bool) -> Iterator[Part]:
    """The documents of one part, where each is in one part as a whole."""
    i = 0
    for part in documents():
        if (int((i + 1) * fraction) > int(i * fraction)) == held:
            yield part
        i += part.last


def _by_text(documents: Documents, fraction: float, *, held: bool) -> Iterator[Part]:
    """The documents of one part, where their own text says which."""
    return (Part(text) for text in whole(documents()) if is_held(text, fraction) == held)


def _cut(documents: Documents, places: Sequence[int], *, after: bool) -> Iterator[Part]:
    """What stands before or after the cut in each document."""
    i = at = 0
    begun = False
    for text, last in documents():
        place = max(0, places[i] - at)
        piece = text[place:] if after else text[:place]
        ends = last if after else at + len(piece) == places[i]
        if piece or (after and begun and ends):
            yield Part(piece, ends)
            begun = not ends
        i, at = (i + 1, 0) if last else (i, at + len(text))


def _place_of_cut(length: int, fraction: float) -> int:
    return int(length * (1 - fraction))
