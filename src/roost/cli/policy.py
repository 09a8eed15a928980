"""`roost policy`: which policies and rules there are, and whether a policy file is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import console, errors

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Look at policies and rules, and check a policy file.", no_args_is_help=True)


@app.command("list")
def list_policies() -> None:
    """The policies that come with Roost."""
    from rich.table import Table

    from roost.rules.policy import Policy, shipped_policies

    table = Table("policy", "version", "rules", "what it is for")
    for name in shipped_policies():
        policy = Policy.named(name)
        table.add_row(policy.name, str(policy.version), str(len(policy.rules)), policy.description)
    console().print(table)


@app.command()
def show(policy: Annotated[str, typer.Argument(help="A shipped policy or a file.")] = "default") -> None:
    """The rules of a policy, in order, with what each of them says."""
    from roost.wiring import find_policy

    chosen = find_policy(policy)
    rules, out = chosen.rules, console()
    out.print(f"{chosen.name}, version {chosen.version}: {chosen.description}", highlight=False)
    out.print(
        f"machine rules look at the best {rules.top_clusters} clusters that have a valid machine", highlight=False
    )
    for stage, bound_rules in (
        ("cluster validators", rules.cluster_validators),
        ("cluster preferences", rules.cluster_preferences),
        ("machine validators", rules.validators),
        ("machine preferences", rules.preferences),
        ("tenant rules", rules.tenant_rules),
    ):
        table = _listing(stage)
        for bound in bound_rules:
            settings = [f"{k} = {v}" for k, v in bound.parameters.items()]
            if bound.rule.kind == "preference":
                settings.append(
                    "continuous" if not bound.buckets else f"{bound.buckets} bucket{'s' * (bound.buckets > 1)}"
                )
            table.add_row(bound.rule.name, ", ".join(settings), bound.rule.summary)
        out.print(table)


@app.command()
def rules() -> None:
    """Every rule that comes with Roost."""
    from roost.rules.policy import shipped_rules

    tables: dict[str, Table] = {}
    for rule in shipped_rules():
        kind = f"{rule.scope} {rule.kind}s" if rule.kind != "tenant" else "tenant rules"
        table = tables.setdefault(kind, _listing(kind))
        table.add_row(rule.name, f"by {', '.join(rule.traits)}" if rule.traits else "", rule.summary)
    for table in tables.values():
        console().print(table)


def _listing(title: str) -> Table:
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2, 0, 2)
    )
    table.add_column(no_wrap=True, min_width=26)
    table.add_column(overflow="fold", max_width=24)
    table.add_column(overflow="fold")
    return table


@app.command()
def check(
    policy: Annotated[str, typer.Argument(help="A policy file.")],
    zone: Annotated[str, typer.Option(help="A zone file, or synthetic:SIZE, to compile it for.")] = "synthetic:1000",
) -> None:
    """Read a policy, compile it, and try it out. A mistake is shown with its line.

    \b
      roost policy check my-policy.yaml
      roost policy check my-policy.yaml --zone zone.yaml
    """
    from roost.agent.allocator import Allocator
    from roost.wiring import find_policy, find_zone

    chosen = find_policy(policy)
    with errors().status("Compiling …"):
        Allocator(find_zone(zone), chosen)
    console().print(f"{policy} is fine: {chosen.name}, version {chosen.version}", highlight=False)
