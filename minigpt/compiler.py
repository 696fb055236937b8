"""Whether what `compile=true` needs is there."""

import os
import shutil
import sys

from minigpt.errors import InputError


def check_compiler(device: str) -> None:
    """Raise `InputError` where a device's code could not be built; of a CPU it is C++.

    PyTorch would find that out at the first step.
    """
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device == "cpu" and sys.platform != "win32" and not shutil.which(compiler):
        raise InputError(
            f"compile=true: needs a C++ compiler, and {compiler} is not there; install it, name"
            " another in CXX, or leave compile out"
        )
