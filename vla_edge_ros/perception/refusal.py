"""Why a camera message cannot be used."""

from dataclasses import dataclass
from enum import Enum


class RefusalKind(str, Enum):
    """What refusals are counted by."""

    EMPTY = "empty"
    ENCODING = "encoding"
    DEPTH = "depth"
    DIMENSIONS = "dimensions"
    STEP = "step"
    SIZE = "size"
    TRUNCATED = "truncated"
    UNDECODABLE = "undecodable"
    FAULT = "fault"
    """Not the message's own, as far as is known: an unexpected exception."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """reason: one line with topic, encoding, what was found and what was wanted."""

    kind: RefusalKind
    reason: str


class ImageRefused(ValueError):
    """A message that is no usable colour or grey image; `str()` of it is `reason`."""

    def __init__(self, kind: RefusalKind, reason: str):
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
