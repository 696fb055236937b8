"""Every page of the ladder runs, which asserts its numbers, and is in the README as it is."""

import re
import runpy
from pathlib import Path

import pytest

from tests.conftest import PROJECT

EXAMPLES = PROJECT / "examples"
PAGES = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
README = EXAMPLES / "README.md"


def paragraph(page: Path) -> str:
    """What the README says of a page: from its heading to the next."""
    parts = re.split(r"^## ", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (found,) = [part for part in parts if f"]({page.name})" in part]
    return found


def test_there_are_ten_rungs() -> None:
    assert [page.name[:2] for page in PAGES] == [f"{number:02}" for number in range(1, 11)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_keeps_its_picture(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import page as common  # pyright: ignore[reportMissingImports]  (on the path of a script)

    monkeypatch.setattr(common, "PICTURES", tmp_path)
    runpy.run_path(str(page), run_name="__main__")
    shown = capsys.readouterr().out
    (picture,) = tmp_path.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (EXAMPLES / "pictures" / picture.name).is_file()
    text = paragraph(page)
    assert f"](pictures/{picture.name})" in text
    for number in re.findall(r"\d+\.\d+(?:e[+-]?\d+)?", text):
        assert number in shown, f"the README gives {number}, and {page.name} does not show it"
