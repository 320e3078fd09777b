"""The number of threads of torch while a model works: one, unless its networks are large enough to repay more.

A clinical step is some thousands of operations on small tensors. Threads do not speed these up, and waiting for each
other they slow them down many times over as soon as another program uses the same cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def suitable_threads(parallel: bool) -> Iterator[None]:
    """Use one thread within, or the caller's number if `parallel`; afterwards the caller's setting is back."""
    before = torch.get_num_threads()
    if parallel or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_suitable_threads(method: F) -> F:
    """Run a method of a model with the number of threads that suits its networks."""

    @wraps(method)
    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with suitable_threads(self.networks.parallel):
            return method(self, *arguments, **keywords)

    return cast(F, run)
