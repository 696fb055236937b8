"""Whether what `compile=true` needs is there, and whether it failed."""

import os
import shutil
import subprocess
import sys

from minigpt.errors import InputError


def check_compiler(device: str) -> None:
    """Raise `InputError` where a device's code could not be built; of a CPU it is C++.

    PyTorch would find that out at the first step.
    """
    if device != "cpu" or sys.platform == "win32":
        return
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    found = shutil.which(compiler)
    ask = [str(found), "--version"]
    if not found or subprocess.run(ask, capture_output=True, check=False).returncode:  # noqa: S603  (the user's)
        raise InputError(
            f"compile=true: needs a C++ compiler, and {compiler} is not there or does not work;"
            " install one, name it in CXX, or leave compile out"
        )


def is_compilers(error: Exception) -> bool:
    """Whether an error came out of compiling."""
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo"))
