"""Options that several commands take, in groups: a parameter that is such a group stands for all of its options.

@app.command()
@flat
def show(name: str, service: Service) -> None: ...      # NAME --url --token --config
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from roost.cli.output import STORE, advise
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.client import AvailabilitySet, Client, Constraints, VMWish
    from roost.rules.own import OwnRules

T = TypeVar("T")
LATER = "Later VMs of a new tenant, too, unless they say otherwise; '*' is any."
PAGE = 1_000  # the most that is asked for at once
SERVICE, VMS, CONSTRAINTS = "Where the service is", "What the VMs ask for", "What the tenant asks of its VMs together"


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """A command as Typer wants it: the options of groups spelled out."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        own = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=own[each.name]
            )
            for each in fields(groups[name])
        ]

    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer looks at
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _about(panel: str, *names: str, **more: Any) -> Any:
    """An option that is shown with others like it."""
    return typer.Option(*names, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class ServiceOptions:
    """Where the service is."""

    url: Annotated[str | None, _about(SERVICE, "--url", help="http://127.0.0.1:7117 unless set; or ROOST_URL.")] = None
    token: Annotated[str | None, _about(SERVICE, "--token", help="The token to show; or ROOST_TOKEN.")] = None
    config: Annotated[Path | None, _about(SERVICE, "--config", help="A settings file; its section client.")] = None

    def open(self) -> Client:
        """A client."""
        import os

        from roost.client import Client
        from roost.settings import load

        given = {"client.url": self.url, "client.token": self.token}
        return Client.from_settings(load(self.config, os.environ, given).settings.client)


StoreOption = Annotated[str | None, typer.Option("--store", help=f"Work without a service. {STORE}")]
Rules = Annotated[
    str | None,
    typer.Option(
        "--rules",
        help="Files and modules with rules of your own, commas between; else the setting agent.rules.",
        metavar="FILE,MODULE…",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Only this one's.")]
Days = Annotated[float | None, typer.Option("--days", help="Only those of the last so many days.", min=0.0)]
Key = Annotated[str, typer.Option("--key", help="The same key is never done twice; made up if left out.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would come of it.")]
IfMatch = Annotated[
    int | None, typer.Option("--if-match", help="Refuse unless it has this generation still.", metavar="GENERATION")
]
Which = Annotated[int | None, typer.Option("--which", help="Which VM of the request, from 0.", min=0)]


@dataclass(frozen=True)
class VMs:
    """VMs that are wanted."""

    vm: Annotated[
        list[str] | None,
        typer.Option(
            "--vm",
            help="A VM type, or so many of it, in an availability set or in none; repeatable.",
            metavar="TYPE[=COUNT][@SET]",
        ),
    ] = None
    priority: Annotated[str, _about(VMS, "--priority", help="A priority band of the zone.")] = ""
    datacenter: Annotated[str, _about(VMS, "--datacenter", help=f"Only there. {LATER}")] = ""
    cluster: Annotated[str, _about(VMS, "--cluster", help=f"Only there. {LATER}")] = ""
    generation: Annotated[str, _about(VMS, "--generation", help=f"Only on such hardware. {LATER}")] = ""
    isolated: Annotated[bool, _about(VMS, "--isolated", help="No VM of another tenant on their machines.")] = False
    requires: Annotated[
        list[str] | None, _about(VMS, "--requires", help="A hardware feature; repeatable.", metavar="FEATURE")
    ] = None
    colocation: Annotated[str, _about(VMS, "--colocation", help="An anti-colocation class of the zone.")] = ""
    requeue: Annotated[
        bool, _about(VMS, "--requeue", help="Place them again, as soon as there is room, after they had to give way.")
    ] = False

    def wishes(self) -> list[VMWish]:
        """As the service understands it."""
        from roost.client import VMWish

        found = []
        for each in self.vm or ():
            which, at, of_set = each.partition("@")
            name, _, number = which.partition("=")
            counted = not number or (number.isascii() and number.isdigit() and int(number) > 0)
            if not name or not counted or (at and not of_set):
                remedy = "write D2, or D2=3 for three of them, or D2=3@db for three in availability set db"
                raise InvalidInput("--vm", f"is {each!r}", remedy)
            found.append(
                VMWish(
                    type=name,
                    count=int(number or 1),
                    priority=self.priority,
                    isolated=self.isolated,
                    colocation=self.colocation,
                    requires=tuple(self.requires or ()),
                    datacenter=self.datacenter,
                    cluster=self.cluster,
                    generation=self.generation,
                    requeue=self.requeue,
                    set=of_set,
                )
            )
        return found


def own_rules(given: str | None, config: Path | None = None) -> OwnRules:
    """Rules of the user's own, as a flag lists them, or else the settings do."""
    import os

    from roost.rules.own import OwnRules
    from roost.settings import load

    return OwnRules.find(load(config, os.environ, {"agent.rules": given}).settings.agent.rules)


class Near(StrEnum):
    """What VMs can be kept together in."""

    RACK = "rack"
    CLUSTER = "cluster"
    DATACENTER = "datacenter"


@dataclass(frozen=True)
class ConstraintOptions:
    """What a tenant asks of its VMs together; 0 or empty: nothing."""

    min_fault_domains: Annotated[
        int,
        _about(CONSTRAINTS, "--min-fault-domains", help="Racks to spread over, at least.", min=0, show_default=False),
    ] = 0
    max_fault_domains: Annotated[
        int,
        _about(CONSTRAINTS, "--max-fault-domains", help="Racks to spread over, at most.", min=0, show_default=False),
    ] = 0
    fault_domain_skew: Annotated[
        int,
        _about(
            CONSTRAINTS, "--fault-domain-skew", help="VMs a rack may have above another.", min=0, show_default=False
        ),
    ] = 0
    min_update_domains: Annotated[
        int, _about(CONSTRAINTS, "--min-update-domains", help="Update domains, at least.", min=0, show_default=False)
    ] = 0
    update_domain_skew: Annotated[
        int,
        _about(CONSTRAINTS, "--update-domain-skew", help="VMs one may have above another.", min=0, show_default=False),
    ] = 0
    max_per_machine: Annotated[
        int, _about(CONSTRAINTS, "--max-per-machine", help="VMs on one machine, at most.", min=0, show_default=False)
    ] = 0
    max_per_rack: Annotated[
        int, _about(CONSTRAINTS, "--max-per-rack", help="VMs in one rack, at most.", min=0, show_default=False)
    ] = 0
    colocate: Annotated[Near | None, _about(CONSTRAINTS, "--colocate", help="Keep all in one.")] = None
    evict_together: Annotated[
        bool, _about(CONSTRAINTS, "--evict-together", help="If one has to give way, those of lower priority go, too.")
    ] = False
    best_effort: Annotated[
        bool, _about(CONSTRAINTS, "--best-effort", help="Place VMs in no set even where that breaks the constraints.")
    ] = False
    sets: Annotated[
        list[str] | None,
        _about(
            CONSTRAINTS,
            "--set",
            help="An availability set, and how many racks (fds) and update domains (uds) its VMs are spread over: "
            "db:fds=3,uds=5, or db:fds=3,best-effort; repeatable.",
            metavar="NAME:TERMS",
        ),
    ] = None

    def chosen(self) -> Constraints:
        """As the service understands it."""
        from roost.client import Constraints

        given = {each.name: getattr(self, each.name) for each in fields(self)}
        sets = dict(_named_set(each) for each in self.sets or ())
        if len(sets) < len(self.sets or ()):
            raise InvalidInput("--set", "names a set twice", "names must differ")
        return Constraints(**{**given, "colocate": str(self.colocate or ""), "sets": sets})


DOMAINS = {"fds": "fault_domains", "uds": "update_domains"}


def _named_set(text: str) -> tuple[str, AvailabilitySet]:
    """An availability set as it is written on the command line."""
    from roost.client import AvailabilitySet

    name, _, terms = text.partition(":")
    wanted: dict[str, Any] = {}
    for term in terms.split(","):
        field, _, number = term.partition("=")
        if term == "best-effort" and "best_effort" not in wanted:
            wanted["best_effort"] = True
        elif DOMAINS.get(field, field) in wanted or field not in DOMAINS or not (number.isascii() and number.isdigit()):
            remedy = "write db:fds=3, web:uds=10 or db:fds=3,uds=5,best-effort"
            raise InvalidInput("--set", f"is {text!r}", remedy)
        else:
            wanted[DOMAINS[field]] = int(number)
    return name, AvailabilitySet(**wanted)


@dataclass(frozen=True)
class Paging:
    """How much of a list."""

    limit: Annotated[int, typer.Option("--limit", help="Show so many.", min=1)] = 100
    every: Annotated[bool, typer.Option("--all", help="Show all of them.")] = False

    @property
    def page(self) -> int:
        """How much to ask for at once."""
        return PAGE if self.every else min(self.limit + 1, PAGE)

    def of(self, items: Iterable[T]) -> Sequence[T]:
        """As many as are wanted; says so if there are more."""
        found = list(items) if self.every else list(islice(items, self.limit + 1))
        if not self.every and len(found) > self.limit:
            advise(f"there are more than {self.limit:,}; see them with --limit or --all")
            return found[: self.limit]
        return found


def followed_by_command(context: typer.Context) -> bool:
    """Whether a command of the group comes next; what stands before it would be lost, and is refused."""
    command = context.invoked_subcommand
    if command is None:
        return False
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(option.opts[0], f"stands before {command}", f"write it after {command}")
    return True
