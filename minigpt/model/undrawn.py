"""Models whose weights come from elsewhere: what would be drawn for them is not."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Undrawn(TorchFunctionMode):
    """While this is entered, what `torch.nn.init` would draw at random stays as it was allocated.

    Drawing takes a second for 124 million weights; on the meta device, where there is nothing to
    draw into, it makes torch import its compiler, which takes another. A weight that nobody fills
    afterwards holds any number.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Leave out the functions of `torch.nn.init`, which return the tensor that they fill."""
        del types
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            filled: Tensor = given["tensor"]
            return filled
        return func(*args, **given)
