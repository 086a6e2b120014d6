"""Puts a version into service or takes it out: moves the aliases, and deploy serves the version that they name."""

import re

from orchestra.errors import DataError
from orchestra.system.runs import TAKEN_BACK
from orchestra.types import Record
from tasks.platform.registry import (
    CANARY,
    CHAMPION,
    DECISION,
    PREVIOUS,
    PROMOTED,
    ROLLED_BACK,
    ModelVersion,
    Registry,
)
from tasks.platform.stage import Stage
from tasks.platform.tracking import said

OUT = "Out of service: version {} took its place."
_OUT = re.compile(rf"(?:\n\n)?{re.escape(OUT).replace(re.escape('{}'), '[0-9]+')}\Z")
"""The last line of a version's description in MLflow while it is taken out."""


class Move(Record):
    """Where the alias `champion` is now."""

    version: int
    """The champion."""
    left: int | None
    """The version that it took over from; None when nothing was ever before it."""
    changed: bool
    """False when the aliases stood like this already."""

    @property
    def line(self) -> str:
        """What happened, for a person."""
        if self.changed:
            return f"version {self.version} is the champion again; it takes over from version {self.left}"
        if self.left is None:
            return f"version {self.version} is the champion already"
        back = f"`orchestra release --to {self.left}` brings that one back"
        return f"version {self.version} is the champion already, since version {self.left} was taken out; {back}"


def rollback(stage: Stage, canary: str | None = None) -> Move:
    """The champion before the present one is champion again; the one taken out is not promoted again by itself.

    `canary`: what a canary found of the champion; None where a person takes it out. Repeated (after a release that
    failed, say) it changes nothing more: only `switch` brings a version back that was taken out. A rollback that was
    killed midway is completed. Raises `DataError`, changing nothing, when there is no previous version or its
    checkpoint is lost.
    """
    registry = Registry(stage.root, stage.params.promote.model_name)
    champion, previous = registry.at(CHAMPION), registry.at(PREVIOUS)
    if champion is not None and ROLLED_BACK in champion.tags:
        # A rollback was killed midway: the tag says where to.
        previous = registry.version(int(champion.tags[ROLLED_BACK]))
    if champion is None or previous is None or champion.number == previous.number:
        raise DataError("there is no previous version", where="the model registry", fix="promote another one first")
    if previous.tags.get(ROLLED_BACK) == str(champion.number):
        return Move(version=champion.number, left=previous.number, changed=False)
    return _move(registry, champion, previous, canary)


def switch(stage: Stage, number: int) -> Move:
    """That version is the champion; one that gives way to an older one is not promoted again by itself.

    Repeated it changes nothing. Raises `DataError`, changing nothing, for a version that there is not, that the gate
    never promoted, or whose checkpoint is lost.
    """
    registry, wanted = promoted(stage, number)
    champion = registry.at(CHAMPION)
    if champion is not None and champion.number == number:
        _back_in_service(registry, champion)
        return Move(version=number, left=None, changed=False)
    return _move(registry, champion, wanted)


def promoted(stage: Stage, number: int) -> tuple[Registry, ModelVersion]:
    """That version, with the registry; raises `DataError` where there is none, or the gate never promoted it."""
    registry = Registry(stage.root, stage.params.promote.model_name)
    wanted = registry.version(number)
    if wanted is None or not _was_champion(registry, wanted):
        known = sorted(version.number for version in registry.versions() if _was_champion(registry, version))
        what = f"there is no version {number}" if wanted is None else f"version {number} was never promoted"
        fix = f"one of: {', '.join(map(str, known))}" if known else "nothing was promoted yet: make pipeline"
        raise DataError(what, where="the model registry", fix=fix)
    return registry, wanted


def take_over(registry: Registry, version: ModelVersion) -> bool:
    """What the gate promoted is champion, and the champion before it previous; whether that changed anything."""
    champion = registry.at(CHAMPION)
    registry.tag(version, {PROMOTED: "true"})
    if champion is not None and champion.number != version.number and not registry.fetch(champion).lost:
        # First the way back, then the way forward: a kill in between leaves the old champion serving.
        registry.point(PREVIOUS, champion)
    return registry.point(CHAMPION, version)


def _was_champion(registry: Registry, version: ModelVersion) -> bool:
    aliased = (registry.at(alias) for alias in (CHAMPION, PREVIOUS))
    return PROMOTED in version.tags or any(found is not None and found.number == version.number for found in aliased)


def _move(registry: Registry, champion: ModelVersion | None, wanted: ModelVersion, canary: str | None = None) -> Move:
    """In an order that a kill anywhere in between leaves to be repeated: the old champion serves till the last step."""
    registry.fetch(wanted).verified()
    if champion is not None and wanted.number < champion.number:
        why = {} if canary is None else {CANARY: said(canary), DECISION: TAKEN_BACK}
        registry.tag(champion, {**why, ROLLED_BACK: str(wanted.number)})
        _describe(registry, champion, OUT.format(wanted.number))
    _back_in_service(registry, wanted)
    if champion is not None:
        registry.point(PREVIOUS, champion)
    registry.point(CHAMPION, wanted)
    return Move(version=wanted.number, left=None if champion is None else champion.number, changed=True)


def _back_in_service(registry: Registry, version: ModelVersion) -> None:
    """No tag says any more that it was taken out."""
    registry.untag(version, ROLLED_BACK, CANARY)
    _describe(registry, version)
    if version.tags.get(DECISION) == TAKEN_BACK:
        registry.tag(version, {DECISION: "Promoted"})


def _describe(registry: Registry, version: ModelVersion, *line: str) -> None:
    """Have the version's description end with the line, or without one that was put there."""
    old = registry.description(version.number)
    if (new := "\n\n".join(filter(None, [_OUT.sub("", old), *line]))) != old:
        registry.describe(version.number, new)
