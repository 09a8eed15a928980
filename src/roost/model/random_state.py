"""The state of a random number generator, in a form that any file can hold: its numbers are larger than 64 bits."""

import numpy as np


def state_of(generator: np.random.Generator) -> dict[str, str]:
    """All that the next draws depend on."""
    state = generator.bit_generator.state
    numbers = {**state["state"], "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}
    return {name: str(number) for name, number in numbers.items()}


def restore(generator: np.random.Generator, state: dict[str, str]) -> None:
    """Let a generator (of the same kind) go on from there."""
    numbers = {name: int(number) for name, number in state.items()}
    present = dict(generator.bit_generator.state)
    present["state"] = {name: numbers[name] for name in present["state"]}
    present["has_uint32"], present["uinteger"] = numbers["has_uint32"], numbers["uinteger"]
    generator.bit_generator.state = present
