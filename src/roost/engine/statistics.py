"""How aggressive each rule is: the share of what reaches it that it filters out."""

from dataclasses import dataclass

from roost.engine.funnel import chosen_clusters, cluster_stages, machine_stages
from roost.engine.selection import Engine
from roost.engine.steps import Steps
from roost.engine.tenant import TenantDesk


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """One rule, over the kinds of request served lately, weighted by how often each was."""

    rule: str
    kind: str
    level: str
    entered: float
    kept: float

    @property
    def filtered(self) -> float:
        """Share of what entered that it filtered out."""
        return 1 - self.kept / self.entered if self.entered else 0.0


def rule_filters(engine: Engine, kinds: int | None = None) -> Steps[list[RuleFilter]]:
    """The funnel of every kind of request that the engine remembers, averaged by use. Takes a scan of the zone each.

    `kinds`: only of that many, those used last. The zone may change between the steps.
    """
    view = engine.view
    desk = TenantDesk(view)
    sums: dict[tuple[str, str, str], list[float]] = {}
    uses = 0
    for evaluation in list(engine.evaluations.newest_first())[:kinds]:
        judged = engine.judge(view, evaluation.shape, desk)
        chosen = chosen_clusters(engine, view, evaluation.shape, judged)
        uses += evaluation.uses
        for stage in (*cluster_stages(engine, view, judged), *machine_stages(engine, view, judged, chosen)):
            total = sums.setdefault((stage.rule, stage.kind, stage.level), [0.0, 0.0])
            total[0] += stage.entered * evaluation.uses
            total[1] += stage.kept * evaluation.uses
        yield
    return [RuleFilter(*key, entered / uses, kept / uses) for key, (entered, kept) in sums.items() if uses]
