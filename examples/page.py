"""What every page of the ladder uses: showing a number that is asserted, and keeping a picture.

Importing it lets a page that is run as a script (`python examples/01_attention.py`) import the
program as well.
"""

import sys
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

PROJECT = Path(__file__).resolve().parents[1]
PICTURES = PROJECT / "examples" / "pictures"

sys.path.insert(0, str(PROJECT))
mpl.use("Agg")


def title(text: str) -> None:
    """Begin a part of the page."""
    print(f"\n{text}\n{'-' * len(text)}")


def show(
    what: str, value: Any, expected: Any, *, digits: int = 4, scientific: bool = False
) -> None:
    """Print a number, or a tensor or list of them, which must be as `expected`.

    `digits` decimals are printed and compared, of 1.234e5 if `scientific`; 0 is for counts, which
    are exact. The last decimal may differ by one, since another CPU rounds otherwise. NaN is
    expected where it is written.
    """
    seen = torch.as_tensor(value).detach().double()
    wanted = torch.as_tensor(expected).double()
    assert seen.shape == wanted.shape, f"{what}: {list(seen.shape)}, not {list(wanted.shape)}"
    unit = 10 ** wanted.abs().log10().floor() if scientific else torch.ones_like(wanted)
    off = ((seen - wanted) / unit).abs()
    slack = 1.01 * 10**-digits if digits else 0
    right = (off <= slack) | (seen == wanted) | (seen.isnan() & wanted.isnan())
    assert right.all(), f"{what}: {seen.tolist()}, not {wanted.tolist()}"
    lines = _lines(seen, f".{digits}{'e' if scientific else 'f'}")
    print(f"{what}:", *lines, sep=" " if len(lines) == 1 else "\n    ")


def _lines(numbers: torch.Tensor, form: str) -> list[str]:
    """A line for each row of the last dimension."""
    table = numbers.reshape(-1, numbers.shape[-1] if numbers.dim() else 1)
    rows = cast("list[list[float]]", table.tolist())
    return [" ".join(format(number, form) for number in row) for row in rows]


def hold(what: str, *, true: bool) -> None:
    """Print a statement, which must be true."""
    assert true, f"not so: {what}"
    print(f"{what}: yes")


def keep(figure: Figure, page: str) -> None:
    """Save the picture of the page whose `__file__` is given."""
    path = PICTURES / Path(page).with_suffix(".png").name
    figure.savefig(path, dpi=100)
    print(f"\npicture: {path}")
