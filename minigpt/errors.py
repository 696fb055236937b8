"""The two ways a command ends badly on purpose; the command line turns each into one line.

Anything else that is raised is a fault of the program.
"""


class InputError(ValueError):
    """A setting, file or prompt is wrong: exit status 2.

    The message is one line that says what is wrong, where, and what would be right.
    """


class RunError(RuntimeError):
    """The input was right and the end was not reached (divergence, a full disk): exit status 1."""
