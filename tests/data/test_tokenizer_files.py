"""Another program's tokenizer: its ids as its own library gives them, and what is refused."""

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from minigpt import checkpoint as checkpoint_module
from minigpt.data import tokenizer_files
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_files import pretrained_tokenizer, read_tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.errors import InputError
from tests.data.foreign_tokenizers import (
    CUTTERS,
    PLAIN,
    described,
    made,
    with_holes,
)

MARKS = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>", END, "</s>", "<|pad|>"]

#: Every Unicode text, with what patterns stumble over.
any_text = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from([*MARKS, " ", "  ", "\n", "\r\n", "!", "'S", "'ve", "12345", "a/", "É"]),
    )
).map("".join)
#: Of these no place is known where every text may be cut.
UNKNOWN = ("unknown", "unknown first", "none")
spaces_and_signs = st.text(alphabet="aB' \n\r\t.,/1é猫。\u2028\u00a0\x1c\x85e\u0301", max_size=40)


def written(folder: Path, description: dict[str, Any] | tokenizers.Tokenizer) -> str:
    """The path of a `tokenizer.json` with this in it."""
    if isinstance(description, tokenizers.Tokenizer):
        description = described(description)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(description), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Any]]:
    """For each way to cut ours, and `transformers` with the same file, marks read as text."""
    transformers = pytest.importorskip("transformers")
    pairs: dict[str, tuple[Tokenizer, Any]] = {}
    for name, cutter in CUTTERS.items():
        path = written(tmp_path_factory.mktemp("tokenizer"), made(cutter))
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
        theirs.split_special_tokens = True
        pairs[name] = pretrained_tokenizer(path), theirs
    return pairs


@pytest.mark.parametrize("name", CUTTERS)
@given(text=any_text)
@example(text="".join(MARKS))
def test_the_ids_are_those_of_the_program_it_is_from(
    pairs: dict[str, tuple[Tokenizer, Any]], name: str, text: str
) -> None:
    ours, theirs = pairs[name]
    ids = ours.encode(text)
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.encode_batch([text, "", text]) == [ids, [], ids]
    assert ours.decode(ids) == text
    marks = {theirs.convert_tokens_to_ids(mark) for mark in MARKS[:3]}
    assert ours.end_id in marks
    assert not marks.intersection(ids)


@pytest.mark.parametrize("name", CUTTERS)
@given(text=st.one_of(any_text, spaces_and_signs))
def test_a_text_in_pieces_encodes_as_the_whole(
    pairs: dict[str, tuple[Tokenizer, Any]], name: str, text: str
) -> None:
    ours, theirs = pairs[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.data.pieces.PIECE", 1)
        cut = list(ours.pieces(text))
        ids = ours.encode(text)
        assert ours.encode_batch([text]) == [ids]
    assert "".join(cut) == text
    # whatever merges there are: the cutting itself is the same
    steps = CUTTERS[name].pre_tokenize_str
    assert [part for piece in cut for part, _ in steps(piece)] == [part for part, _ in steps(text)]
    assert ids == theirs(text, add_special_tokens=False).input_ids
    if name in UNKNOWN:
        assert cut == [text]


def test_a_text_is_cut_where_it_is_proven_safe(pairs: dict[str, tuple[Tokenizer, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.data.pieces.PIECE", 1)
        for name, (ours, _) in pairs.items():
            places = "a| b\nc"
            if name in ("gpt2", "gpt2's own", "smollm"):
                places = "a| b|\nc"
            elif name in UNKNOWN:
                places = "a b\nc"
            assert "|".join(ours.pieces("a b\nc")) == places, name


@pytest.fixture(scope="module", params=["a .", "  ", "'"])
def looking(request: pytest.FixtureRequest) -> tuple[str, tokenizers.Tokenizer, Tokenizer]:
    """A token that is looked for in a text before it is cut, and the tokenizer that has it."""
    inner = made()
    inner.add_tokens([request.param])
    return request.param, inner, Tokenizer.from_json(inner.to_str())


@given(text=spaces_and_signs)
def test_tokens_that_are_looked_for_are_not_cut(
    looking: tuple[str, tokenizers.Tokenizer, Tokenizer], text: str
) -> None:
    looked_for, inner, tokenizer = looking
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.data.pieces.PIECE", 1)
        assert len(list(tokenizer.pieces("b b"))) == (1 if looked_for == "a ." else 2)
        assert tokenizer.encode(text) == inner.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_gpt2s_own(shared_data: Path, tmp_path: Path) -> None:
    """The figures of the original: `Hello world`, and an end token that no text encodes to."""
    folder = shared_data / "gpt2_tokenizer"
    tokenizer = pretrained_tokenizer(str(folder))
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.unused) == ("bpe", 50257, ())
    assert (tokenizer.end, tokenizer.end_id) == (END, 50256)
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert 50256 not in tokenizer.encode(END)
    assert tokenizer.decode(tokenizer.encode(END + "é🐈")) == END + "é🐈"
    # the same by a file of another name
    alone = tmp_path / "of gpt2.json"
    alone.write_text(tokenizer.to_json(), encoding="utf-8")
    assert pretrained_tokenizer(str(alone)).to_json() == tokenizer.to_json()


@pytest.mark.parametrize(
    ("special", "named", "end"),
    [
        (["</s>", "<|endoftext|>", "<|im_end|>"], "<|im_end|>", "<|endoftext|>"),  # Qwen's chat
        (["<|end_of_text|>", "<|eot_id|>"], "<|eot_id|>", "<|end_of_text|>"),  # Llama 3's chat
        (["<|end_of_text|>", "<|endoftext|>"], None, "<|endoftext|>"),
        (["<s>", "</s>", "[EOS]"], "[EOS]", "[EOS]"),
        (["<s>", "</s>", "[EOS]"], {"content": "[EOS]", "lstrip": False}, "[EOS]"),
        (["<s>", "</s>", "[EOS]"], None, "</s>"),
        (["<s>", "</s>"], "<not there>", "</s>"),
    ],
)
def test_which_token_ends_a_document(
    tmp_path: Path, special: list[str], named: Any, end: str
) -> None:
    inner = made(special=special)
    path = written(tmp_path, inner)
    settings = {} if named is None else {"eos_token": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for tokenizer in (pretrained_tokenizer(path), read_tokenizer(tmp_path)):
        assert (tokenizer.end, tokenizer.end_id) == (end, inner.token_to_id(end))
        assert tokenizer.vocab_size == inner.get_vocab_size()
        text = f"a {end}{end}"
        assert tokenizer.end_id not in tokenizer.encode(text)
        assert tokenizer.decode([*tokenizer.encode(text), tokenizer.end_id]) == text
        # it is the same after a checkpoint, and to the library
        again = Tokenizer.from_json(tokenizer.to_json())
        assert (again.end, again.end_id) == (end, tokenizer.end_id)
        assert again.to_json() == tokenizer.to_json()
        library = tokenizers.Tokenizer.from_str(tokenizer.standard_json())
        assert library.get_vocab() == inner.get_vocab()


def test_one_without_an_end_token_gets_the_next_free_id(tmp_path: Path) -> None:
    inner = made(special=["<pad>", "<|im_end|>"])
    tokenizer = pretrained_tokenizer(written(tmp_path, inner))
    assert (tokenizer.end, tokenizer.end_id) == (END, inner.get_vocab_size())
    assert tokenizer.vocab_size == tokenizer.end_id + 1
    assert tokenizer.encode(f"a{END}") == inner.encode(f"a{END}").ids
    assert Tokenizer.from_json(tokenizer.to_json()).end_id == tokenizer.end_id
    # a model's folder has no row for it
    with pytest.raises(InputError, match=r"no token <\|endoftext\|> to end a document with"):
        read_tokenizer(tmp_path)


def test_a_token_that_text_becomes_does_not_end_a_document(tmp_path: Path) -> None:
    """`</s>` is a tag of HTML, which a BPE may have learned as one word."""
    inner = made(CUTTERS["unknown"], special=(), texts=["</s>"] * 9)
    assert inner.encode("</s>").ids == [inner.token_to_id("</s>")]
    tokenizer = pretrained_tokenizer(written(tmp_path, inner))
    assert tokenizer.end == END
    assert tokenizer.encode("</s>") == inner.encode("</s>").ids
    assert tokenizer.decode(tokenizer.encode("</s></s> a")) == "</s></s> a"


def test_an_end_token_that_was_looked_for_no_longer_is(tmp_path: Path) -> None:
    inner = made(special=[])
    inner.add_tokens(["<|endoftext|>"])  # not as a special one
    tokenizer = pretrained_tokenizer(written(tmp_path, inner))
    assert tokenizer.end_id == inner.token_to_id(END)
    for each in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert each.end_id not in each.encode(f"a{END}")


@pytest.mark.parametrize("end", ["</s>", "[EOS]"])
def test_ids_with_holes_are_the_files_own(tmp_path: Path, end: str) -> None:
    """The library would number the added tokens anew, on top of ids that others have."""
    description = with_holes(end=end)
    vocabulary = description["model"]["vocab"]
    last = max(vocabulary.values())
    tokenizer = pretrained_tokenizer(written(tmp_path, description))
    ended = 100 if end == "</s>" else last + 10
    assert (tokenizer.end, tokenizer.end_id) == ("</s>" if end == "</s>" else END, ended)
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == last + (10 if ended == 100 else 11)
    assert tokenizer.unused == (101, 102, 103, 104, *range(last + 1, last + 7), last + 8)
    for each in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert each.token_bytes[last + 9] == b"    "
        ids = each.encode(f"The cat's    {end}<|pad|>")
        assert last + 9 in ids
        assert not {100, last + 7, *each.unused} & set(ids)
        assert each.decode(ids) == f"The cat's    {end}<|pad|>"
    # a text without the added token, by the model alone
    merges = [(left, right) for left, right in description["model"]["merges"]]
    alone = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    alone.pre_tokenizer = made().pre_tokenizer
    for text in ("The dog's 12 mats", "été 猫"):
        assert tokenizer.encode(text) == alone.encode(text).ids


@pytest.fixture(scope="module")
def composing(tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """Qwen's pattern with its normalizer, and what is made of that."""
    inner = made(CUTTERS["qwen"])
    inner.normalizer = normalizers.Sequence([normalizers.NFC()])
    return inner, pretrained_tokenizer(written(tmp_path_factory.mktemp("composing"), inner))


@given(text=any_text)
def test_composition_is_left_out(
    composing: tuple[tokenizers.Tokenizer, Tokenizer], text: str
) -> None:
    inner, tokenizer = composing
    assert tokenizer.decode(tokenizer.encode(text)) == text
    inner.encode_special_tokens = True
    if unicodedata.is_normalized("NFC", text):
        assert tokenizer.encode(text) == inner.encode(text).ids


def changed(**changes: Any) -> dict[str, Any]:
    """The JSON of a small tokenizer with changes in its parts (`model_dropout=0.1`)."""
    description = described(made(vocab_size=300))
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            description[part][key] = value
        else:
            description[part] = value
    return description


def with_word_as_mark() -> dict[str, Any]:
    inner = made(CUTTERS["unknown"], special=["</s>"], texts=["cat cat cat"])
    inner.add_special_tokens(["cat"])
    return described(inner)


def wordpiece() -> tokenizers.Tokenizer:
    vocabulary = {"[UNK]": 0, "a": 1, "##b": 2, "</s>": 3}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return inner


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2 and the first Mistral have it."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "▁a": 5}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return inner


def metaspace() -> dict[str, Any]:
    inner = sentencepiece()
    inner.normalizer = None
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    return described(inner)


def pre_tokenized(*steps: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    inner = made()
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    return inner


def with_two_ids() -> dict[str, Any]:
    description = changed()
    description["model"]["vocab"]["twice"] = 7
    return description


def with_another_id() -> dict[str, Any]:
    description = changed()
    description["added_tokens"][0].update(id=305, content="a")
    return description


def with_stripped() -> tokenizers.Tokenizer:
    inner = made()
    inner.add_tokens([tokenizers.AddedToken("<m>", lstrip=True)])
    return inner


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "not json": (lambda: "a tokenizer", "not a tokenizer's JSON: expected value at line 1"),
    "empty": (dict, "not a tokenizer's JSON"),
    "a list": (list, "not a tokenizer's JSON"),
    "a vocabulary": (lambda: {"a": 0, "b": 1}, "not a tokenizer's JSON"),
    "wordpiece": (wordpiece, "the tokenizer's model is WordPiece; only BPE can be used"),
    "sentencepiece": (sentencepiece, "before it encodes it: its normalizer is Prepend, Replace"),
    "metaspace": (metaspace, "its pre-tokenizer Metaspace does not keep all of it"),
    "lowercase": (lambda: changed(normalizer={"type": "Lowercase"}), "its normalizer is Lowercase"),
    "nfkc": (lambda: changed(normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFC"}, {"type": "NFKC"}]}), "its normalizer is NFC, NFKC"),
    "prefix": (lambda: pre_tokenized(pre_tokenizers.ByteLevel()), "puts a space in front"),
    "whitespace": (lambda: pre_tokenized(pre_tokenizers.Whitespace(), PLAIN),
                   "its pre-tokenizer Whitespace does not keep all of it"),
    "removed": (lambda: pre_tokenized(pre_tokenizers.Split(" ", "removed"), PLAIN),
                "its pre-tokenizer Split does not keep all of it"),
    "punctuation": (lambda: pre_tokenized(pre_tokenizers.Punctuation("removed"), PLAIN),
                    "its pre-tokenizer Punctuation does not keep all of it"),
    "twice": (lambda: pre_tokenized(PLAIN, PLAIN), "writes bytes as symbols twice"),
    "strip": (with_stripped, "it drops spaces around '<m>'"),
    "dropout": (lambda: changed(model__dropout=0.1), "BPE has dropout=0.1; only one without"),
    "suffix": (lambda: changed(model__end_of_word_suffix="</w>"), "has end_of_word_suffix=</w>"),
    "no bytes": (lambda: changed(pre_tokenizer=None), "is not byte-level"),
    "a word": (with_word_as_mark, "text can become the tokenizer's added token 'cat'"),
    "learned end": (lambda: made(CUTTERS["unknown"], (), texts=[END] * 9),
                    r"text can become the token <\|endoftext\|>, so it cannot end a document"),
    "two tokens": (with_two_ids, "gives two tokens the same id"),
    "two ids": (with_another_id, "two ids for the token 'a': 64 and 305"),
    "far": (lambda: changed(added_tokens=[{
        "id": 10**9, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True}]), "ids go up to 1,000,000,000 for"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_says_why(name: str, tmp_path: Path) -> None:
    make, says = REFUSED[name]
    description = make()
    path = tmp_path / "tokenizer.json"
    if isinstance(description, str):
        path.write_text(description)
    else:
        written(tmp_path, description)
    with pytest.raises(InputError, match=says) as caught:
        pretrained_tokenizer(str(path))
    said = str(caught.value)
    assert said.startswith(f"tokenizer.path={path}: ")
    assert said.count(str(path)) == 1
    assert "\n" not in said
    # the folder is refused for the same reason, and its file named
    with pytest.raises(InputError, match=says) as caught:
        pretrained_tokenizer(str(tmp_path))
    assert str(caught.value).startswith(f"tokenizer.path={tmp_path}: tokenizer.json: ")


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    (tmp_path / "broken.ckpt").write_bytes(b"PK")
    for path, says in {
        "missing.json": "no such file or folder; a tokenizer.json, a folder with one or with",
        "empty": "has no tokenizer.json, and no vocab.json with merges.txt",
        "half": "has no tokenizer.json, and no vocab.json with merges.txt",
        "half/vocab.json": "one file of two; name the folder",
        "binary.json": "not a tokenizer's JSON: 'utf-8' codec",
        "broken.ckpt": "damaged, or not a checkpoint of this program",
        "~nobody-of-this-name/a": "Could not determine home directory",
    }.items():
        with pytest.raises(InputError, match=says) as caught:
            pretrained_tokenizer(path)
        assert str(caught.value).startswith(f"tokenizer.path={path}: "), path
        assert "\n" not in str(caught.value)


def test_gpt2s_files_that_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(InputError, match=r"vocab.json: with merges.txt no byte-level BPE: "):
        pretrained_tokenizer(str(tmp_path))


def test_the_tokenizer_of_a_run(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    file = checkpoint("run/checkpoints/best.ckpt", kind="char")
    expected = checkpoint_module.load_model(file).tokenizer.to_json()
    for path in (file, file.parent, file.parents[1]):
        assert pretrained_tokenizer(str(path)).to_json() == expected
    assert tokenizer_files._RECORD == checkpoint_module.RECORD  # noqa: SLF001


def test_a_file_of_a_folder_is_read_with_what_the_folder_says(tmp_path: Path) -> None:
    path = written(tmp_path, made(special=["[EOS]"]))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[EOS]"}')
    assert pretrained_tokenizer(path).end == "[EOS]"
    shutil.copy(path, tmp_path / "alone.json")
    assert pretrained_tokenizer(str(tmp_path / "alone.json")).end == END
