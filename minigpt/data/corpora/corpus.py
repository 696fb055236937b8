"""What a corpus is.

Documents travel in parts, since one may be larger than memory: whatever passes over them holds a
part, not a document.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from minigpt.data.cache import digest, digests_of
from minigpt.errors import InputError


class Part(NamedTuple):
    """A document, or a part of one that does not end with it."""

    text: str
    last: bool = True


#: Reads or tells documents, anew at each call.
Documents: TypeAlias = Callable[[], Iterator[Part]]


@dataclass(frozen=True, slots=True)
class Source:
    """Documents as they are read: shards in their order.

    `where` begins what is said of them. The contents of `files` and the `form` in which they are
    read stand for the documents. `n_skipped` counts files left out because they are not text;
    `note` is what should be known of them besides.
    """

    where: str
    shards: Sequence[Documents]
    files: Sequence[Path]
    form: tuple[str, ...] = ()
    n_skipped: int = 0
    note: str = ""

    def documents(self) -> Iterator[Part]:
        """All of them."""
        return chain.from_iterable(shard() for shard in self.shards)

    def identity(self, cache: Path) -> str:
        """What no other documents have; `cache` holds what is known of files."""
        return digest([self.form, digests_of(self.files, cache)])


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents for training and for validation.

    `text` stands for all documents and `division` for the split; together they are what no other
    corpus has. `n_documents` counts the documents of both parts (one that is cut between them
    counts once), `n_bytes` theirs as UTF-8 (None: not known), `left_out` what is left out, each by
    its name in the singular. `log_probability` gives the exact log-probability of a document, in
    nats, where it is known. `note` is that of its source. `text_now` finds `text` again, where it
    may have changed. `is_head` says that the documents are the first ones of a corpus that is
    streamed.
    """

    name: str
    text: str
    division: str
    train: Documents
    validation: Documents
    n_documents: int
    n_bytes: int | None
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    log_probability: Callable[[str], float] | None = None
    text_now: Callable[[], str] | None = None
    note: str = ""
    is_head: bool = False

    @property
    def identity(self) -> str:
        """The text and its division."""
        return f"{self.text} {self.division}"

    def check_unchanged(self) -> None:
        """Raise `InputError` if the text is another than when it was looked through."""
        if self.text_now is not None and self.text_now() != self.text:
            raise InputError(f"corpus {self.name}: its files changed while they were read")

    def summary(self) -> str:
        """One line about what was found."""
        left_out = [counted(count, what) for what, count in self.left_out.items() if count]
        tail = f" ({' and '.join(left_out)} left out)" if left_out else ""
        tail += " at its beginning" if self.is_head else ""
        tail += f"; {self.note}" if self.note else ""
        return f"corpus {self.name}: {counted(self.n_documents, 'document')}{tail}"


def whole(parts: Iterable[Part]) -> Iterator[str]:
    """Documents, each in one piece."""
    held: list[str] = []
    for text, last in parts:
        held.append(text)
        if last:
            yield "".join(held)
            held.clear()


def counted(number: int, what: str) -> str:
    """How many there are: `1 document`, `1,000 documents`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
