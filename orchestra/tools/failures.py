"""How an endpoint fails: typed, with what it may have cost, and as a record that a cassette keeps."""

from enum import StrEnum

from orchestra.errors import CallError, ToolError
from orchestra.types import Charge, Record, Usage


class Unusable(StrEnum):
    """Why a reply that came cannot be an answer."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    """Nothing but thoughts, which the token limit cut off."""
    TOOL_CALLS = "tool_calls"
    """It calls tools of its own instead of answering."""
    REFUSED = "refused"
    SHAPE = "shape"
    """No chat completion."""


OWN = {Unusable.TRUNCATED: "its thoughts did not end", Unusable.REFUSED: "it refused"}
"""What the model itself did in place of an answer, in words. Such a reply is wrong; no infrastructure failed."""


class EndpointError(ToolError):
    """An endpoint gave no answer."""

    seconds: float = 0.0
    """How long that took."""
    lost: tuple[Usage | None, ...] = ()
    """Attempts that may be billed: their usage, None where it is not known."""
    unreachable: bool = False
    """Nobody listens at the address."""


class DeadlineError(EndpointError):
    """No answer in time."""


class RequestError(EndpointError):
    """The endpoint works and refuses this request."""


class CircuitError(EndpointError):
    """Not asked, or not again: it failed too often in a row, and no wait helps or is allowed."""

    def __init__(self, what: str, *, wait_s: float = 0.0, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.wait_s = wait_s
        """Seconds until it is asked again."""


class ReplyError(EndpointError):
    """A reply came, and there is no answer in it."""

    def __init__(
        self, what: str, *, unusable: Unusable, usage: Usage | None = None, where: str = "", fix: str = ""
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.unusable, self.usage = unusable, usage

    @property
    def own(self) -> str | None:
        """What the model did in place of an answer; None: it is no doing of the model."""
        return OWN.get(self.unusable)

    @property
    def billed(self) -> tuple[tuple[Usage | None, ...], Usage | None]:
        """The attempts before the reply, and the reply's own tokens, as `lost` has them."""
        *before, last = self.lost or (self.usage,)
        return tuple(before), last


class Failure(Record):
    """A failed call as a cassette keeps it, so that a run replays with its failures."""

    kind: str
    """Class of the error."""
    what: str
    where: str = ""
    fix: str = ""
    seconds: float = 0.0
    lost: tuple[Usage | None, ...] = ()
    unusable: Unusable | None = None
    wait_s: float = 0.0
    charges: tuple[Charge, ...] = ()
    """Of a tool that no endpoint is behind, whose losses say it."""

    @classmethod
    def of(cls, error: ToolError | CallError) -> "Failure":
        kind = type(error).__name__
        if isinstance(error, CallError):
            return cls(kind=kind, what=str(error))
        known = {name: value for name, value in vars(error).items() if name in cls.model_fields}
        return cls(kind=kind, **known)

    def error(self) -> ToolError | CallError:
        """The error, as it was raised."""
        if self.kind == CallError.__name__:
            return CallError(self.what)
        error: EndpointError
        if self.unusable is not None:
            error = ReplyError(self.what, unusable=self.unusable, where=self.where, fix=self.fix)
        elif self.kind == CircuitError.__name__:
            error = CircuitError(self.what, wait_s=self.wait_s, where=self.where, fix=self.fix)
        elif self.kind in _PLAIN:
            error = _PLAIN[self.kind](self.what, where=self.where, fix=self.fix)
        else:
            failed = ToolError(self.what, where=self.where, fix=self.fix)
            failed.charges = self.charges
            return failed
        error.seconds, error.lost = self.seconds, self.lost
        return error


_PLAIN = {kind.__name__: kind for kind in (EndpointError, DeadlineError, RequestError)}
