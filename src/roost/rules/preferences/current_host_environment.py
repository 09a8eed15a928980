"""Soft rule: use machines that run the latest host environment."""

from roost.engine.rule import preference


@preference()
def current_host_environment(machine, vm, oldest=4):
    """Prefer the machine whose host environment is the latest; `oldest` or more versions behind are equally bad."""
    return min(1.0, machine.versions_behind / max(1, oldest))
