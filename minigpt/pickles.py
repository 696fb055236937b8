"""Files that `torch.save` wrote, read as plain data: reading one never runs code."""

import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch


def read_pickled(path: Path, device: str | torch.device = "cpu", *, unzipped: bool = False) -> Any:
    """What is in a file, or None if it is damaged, or holds anything but plain data.

    torch looks at no checksum, and lets a packed entry grow to any size: both are seen to here.
    With `unzipped` the format of torch before 1.6 is read too, which has no checksum.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, ThreadPoolExecutor(1) as beside:
                unpacked = sum(entry.file_size for entry in archive.infolist())
                if unpacked > path.stat().st_size:
                    return None
                damaged = beside.submit(archive.testzip)  # takes as long as the reading does
                contents = _loaded(path, device)
                return contents if damaged.result() is None else None
        return _loaded(path, device) if unzipped else None
    except Exception:  # noqa: BLE001  what is not a pickle can make the unpickler raise anything
        return None


def _loaded(path: Path, device: str | torch.device) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch thinks of a file that is no checkpoint
        return torch.load(path, map_location=device, weights_only=True)
