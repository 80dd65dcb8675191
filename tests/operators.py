"""Counting the operators that torch runs."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """All of them, or without `views` those that do not only look at a tensor in another way."""

    def __init__(self, *, views: bool = True) -> None:
        super().__init__()
        self.count, self.views = 0, views

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        is_view = any(result.alias_info is not None for result in operator._schema.returns)
        self.count += self.views or not is_view
        return operator(*given, **(options or {}))
