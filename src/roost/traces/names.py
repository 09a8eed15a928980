"""Names by number, made when they are asked for: millions of them take no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True)
class Numbered(Sequence[str]):
    """`prefix` and a number from 1 on, so many of them."""

    prefix: str
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [f"{self.prefix}{i + 1}" for i in range(*at.indices(self.size))]
        i = int(at)
        if not -self.size <= i < self.size:
            raise IndexError(at)
        return f"{self.prefix}{i % self.size + 1}"
