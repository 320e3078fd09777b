"""All worlds, in the order of their letters."""

from __future__ import annotations

from collections.abc import Iterable

from reproduction.inference import rows, trials, visits
from reproduction.inference.world import World

WORLDS = {
    world.name: world
    for world in sorted([*rows.WORLDS, *visits.WORLDS, *trials.WORLDS], key=lambda world: world.letter)
}


def chosen(names: Iterable[str]) -> list[World]:
    """Return the worlds of these names or letters."""
    wanted = set(names)
    return [world for world in WORLDS.values() if {world.name, world.letter} & wanted]
