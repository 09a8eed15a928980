"""`roost policy`: which policies and rules there are, whether a policy file is right, and which policies decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import DryRun, Key, Rules, ServiceOptions, flat, own_rules
from roost.cli.output import (
    Form,
    Output,
    advise,
    console,
    errors,
    print_facts,
    print_json,
    print_table,
    read_input,
    say,
    when,
)

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    help="Look at policies and rules, check a policy file; keep policies at the service and say which decide.",
    no_args_is_help=True,
)

LATEST = 5  # differences that are shown
HERE, THERE = "Here, without a service", "At the service"
Name = Annotated[str, typer.Argument(help="The policy.", metavar="NAME")]


@app.command("list", rich_help_panel=HERE)
def list_policies() -> None:
    """The policies that come with Roost."""
    from roost.rules.policy import Policy, shipped_policies

    found = map(Policy.named, shipped_policies())
    print_table(
        ("policy", "version", "rules", "what it is for"),
        ((policy.name, policy.version, len(policy.rules), policy.description) for policy in found),
    )


@app.command(rich_help_panel=HERE)
def show(
    policy: Annotated[str, typer.Argument(help="A shipped policy or a file.")] = "default", rules: Rules = None
) -> None:
    """The rules of a policy, in order, with what each of them says."""
    from roost.wiring import find_policy

    chosen = find_policy(policy, own_rules(rules))
    found, out = chosen.rules, console()
    out.print(f"{chosen.name}, version {chosen.version}: {chosen.description}", highlight=False)
    out.print(
        f"machine rules look at the best {found.top_clusters} clusters that have a valid machine", highlight=False
    )
    for stage, bound_rules in (
        ("cluster validators", found.cluster_validators),
        ("cluster preferences", found.cluster_preferences),
        ("machine validators", found.validators),
        ("machine preferences", found.preferences),
        ("tenant rules", found.tenant_rules),
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


@app.command("rules", rich_help_panel=HERE)
def list_rules(rules: Rules = None) -> None:
    """Every rule that comes with Roost, and those of your own that are listed."""
    from roost.rules.policy import shipped_rules

    tables: dict[str, Table] = {}
    for rule in (*shipped_rules(), *own_rules(rules).rules().values()):
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


@app.command(rich_help_panel=HERE)
def check(
    policy: Annotated[str, typer.Argument(help="A policy file.")],
    zone: Annotated[str, typer.Option(help="A zone file, or synthetic:SIZE, to compile it for.")] = "synthetic:1000",
    rules: Rules = None,
) -> None:
    """Read a policy, compile it, and try it out. A mistake is shown with its line.

    \b
      roost policy check my-policy.yaml
      roost policy check my-policy.yaml --zone zone.yaml
      roost policy check my-policy.yaml --rules few_failures.py
    """
    from roost.placing.allocator import Allocator
    from roost.wiring import find_policy, find_zone

    chosen = find_policy(policy, own_rules(rules))
    with errors().status("Compiling …"):
        Allocator(find_zone(zone), chosen)
    console().print(f"{policy} is fine: {chosen.name}, version {chosen.version}", highlight=False)


# ------------------------------------------------------------------------------------------------------ at the service


@app.command(rich_help_panel=THERE)
@flat
def available(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """Every policy that the service can decide by, and for which share of the tenants it does."""
    with service.open() as client:
        found = client.list_policies().items
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("policy", "version", "digest", "decides", "from", "what it is for"),
        (
            (p.name, str(p.version), p.digest, f"{p.share:.0%}" if p.share else "", "Roost" if p.shipped else "you",
             f"cannot be used here: {p.problem}" if p.problem else p.description)
            for p in found
        ),
    )  # fmt: skip


@app.command(rich_help_panel=THERE)
@flat
def text(name: Name, service: ServiceOptions) -> None:
    """A policy of the service, as YAML.

    \b
      roost policy text dense > my-policy.yaml
    """
    with service.open() as client:
        console().out(client.get_policy(name).text, end="", highlight=False)


@app.command(rich_help_panel=THERE)
@flat
def put(
    file: Annotated[str, typer.Argument(help="A policy file, or - for the input.", metavar="FILE")],
    service: ServiceOptions,
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Keep a policy at the service, under its name. It decides nothing until it is activated.

    The service reads it, compiles it and tries it out first; a mistake is told with its line.

    \b
      roost policy put my-policy.yaml --dry-run
      roost policy put my-policy.yaml
    """
    from roost.model.errors import InvalidInput

    try:
        words = read_input(file).decode()
    except UnicodeDecodeError:
        raise InvalidInput(file, "is no text", "give a policy file") from None
    with service.open() as client:
        found = client.validate_policy(words)  # it knows its own name
        if not dry_run:
            found = client.put_policy(found.name, words, key=key)
    if output is Form.JSON:
        print_json(found)
    else:
        done = "is fine" if dry_run else "is kept"
        say(f"{found.name}, version {found.version}, digest {found.digest}, {done}: {found.rules} rules")


@app.command(rich_help_panel=THERE)
@flat
def activate(
    name: Name,
    service: ServiceOptions,
    against: Annotated[str, typer.Option("--against", help="Compare it with another policy.")] = "",
    share: Annotated[
        float, typer.Option("--share", help="Of the tenants, that the other one decides for.", min=0, max=1)
    ] = 0.0,
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Let a policy decide from now on. With --against, another one decides for a share of the tenants.

    \b
      roost policy activate dense
      roost policy activate default --against dense --share 0.1
      roost policy results
    """
    with service.open() as client:
        found = client.activate_policy(name, against=against, share=share, key=key, dry_run=dry_run)
    if output is Form.JSON:
        print_json(found)
    else:
        also = f", {found.against} for {found.share:.0%} of the tenants" if found.against else ""
        say(f"{found.policy} {'would decide' if dry_run else 'decides'}{also}")


@app.command(rich_help_panel=THERE)
@flat
def active(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """Which policy decides, and which one it is compared with."""
    with service.open() as client:
        found = client.active_policy()
    if output is Form.JSON:
        print_json(found)
        return
    other = f"{found.against} {found.against_digest}, for {found.share:.0%} of the tenants" if found.against else "none"
    print_facts(
        {
            "policy": f"{found.policy} {found.digest}",
            "compared with": other,
            "since": when(found.since) or "the service started",
        }
    )
    if found.problem:
        advise(found.problem)


@app.command(rich_help_panel=THERE)
@flat
def results(
    service: ServiceOptions,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Of the last so many hours; else since the last activation.", min=0)
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """What each policy did, side by side."""
    import time

    with service.open() as client:
        found = client.policy_results(since=None if hours is None else time.time() - hours * 3_600)
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("policy", "digest", "requests", "declined", "VMs", "retries", "mean µs", "p99 µs"),
        (
            (r.policy, r.digest, r.requests, r.declined, r.vms, r.retries, round(r.mean_decided_us), r.p99_decided_us)
            for r in found.results
        ),
    )


@app.command(rich_help_panel=THERE)
@flat
def shadow(
    service: ServiceOptions,
    name: Annotated[str, typer.Argument(help="The policy; none with --off.", metavar="[NAME]")] = "",
    share: Annotated[float, typer.Option("--share", help="Of the tenants that it looks at.", min=0, max=1)] = 1.0,
    off: Annotated[bool, typer.Option("--off", help="Let no policy decide in the shadow.")] = False,
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Let a policy decide beside the one in force: what it would do otherwise is counted, nothing is placed by it.

    \b
      roost policy shadow dense
      roost policy shadow dense --share 0.5
      roost policy differences
      roost policy shadow --off
    """
    from roost.model.errors import InvalidInput
    from roost.wire.policies import ShadowPolicy

    if bool(name) == off:
        raise InvalidInput("NAME", "and --off exclude each other" if off else "is missing", "give a policy, or --off")
    with service.open() as client:
        if off:
            client.end_shadow(key=key, dry_run=dry_run)
            found = ShadowPolicy()
        else:
            found = client.shadow_policy(name, share=share, key=key, dry_run=dry_run)
    if output is Form.JSON:
        print_json(found)
    else:
        of = f", for {found.share:.0%} of the tenants" if found.policy and found.share < 1 else ""
        say(f"{found.policy or 'no policy'} {'would decide' if dry_run else 'decides'} in the shadow{of}")


@app.command(rich_help_panel=THERE)
@flat
def differences(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """What the policy in the shadow would have decided otherwise: by rule, and the latest ones explained.

    Of the worker that answers; the metric roost_shadow_changed_total has those of all.
    """
    with service.open() as client:
        found = client.policy_differences()
    if output is Form.JSON:
        print_json(found)
        return
    if not found.shadow.policy:
        say("no policy decides in the shadow; let one with: roost policy shadow NAME")
        return
    share = found.changed / found.decisions if found.decisions else 0.0
    print_facts(
        {
            "policy": f"{found.shadow.policy} {found.shadow.digest}",
            "since": when(found.shadow.since),
            "decisions": f"{found.decisions:,}",
            "changed": f"{found.changed:,} ({share:.1%})",
            **({"not looked at": f"{found.skipped:,}, for lack of time"} if found.skipped else {}),
        }
    )
    if found.counts:
        say("")
        print_table(
            ("how", "rule", "decisions", "share"),
            ((c.kind, c.rule, c.decisions, f"{c.decisions / found.decisions:.1%}") for c in found.counts),
        )
    for each in found.latest[:LATEST]:
        say(f"\n{each.vm_type} for {each.tenant}: {each.text}")
    if found.problem:
        advise(f"it is switched off, because it does not work: {found.problem}")


@app.command(rich_help_panel=THERE)
@flat
def delete(name: Name, service: ServiceOptions, key: Key = "") -> None:
    """Forget a policy. One that is active goes on deciding; decisions that it made can still be explained."""
    with service.open() as client:
        client.delete_policy(name, key=key)
    say(f"forgot {name}")
