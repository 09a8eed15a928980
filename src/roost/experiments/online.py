"""Placing VMs with departures in mind (the allocator slides, "online nature of allocation").

The slides' example: every VM leaves with probability 1/2 until time T, and a new VM goes to Node 1 or to Node 2. How
likely is it that VM_b can be deployed then? They print (1/2)² + (1/2)³ = 6/16 for Node 1 and 1/2 + (1/2)⁴ = 9/16 for
Node 2; their drawing is not in the text. A power of 1/2 counts VMs that all have to leave: with the new one on Node 1
two on one node and three on the other, with it on Node 2 one and four. So Node 1 runs one VM, Node 2 runs three, and
VM_b takes a whole node: that is `DRAWN`.

What they add up counts twice that both nodes are free: it is how many nodes can take VM_b, on the average. That at
least one can has the probability 11/32, and 17/32. For these to be 6/16 and 9/16 themselves, Node 2 must be too small
for VM_b. Say that the nodes can take it with probabilities a and b when the new VM is on Node 1: (1 - a)(1 - b) = 5/8,
and both are whole multiples of a power of 1/2, so one of them is 0 (5 is prime, and 5/4 too much). If it were a, Node 1
could not take VM_b without the new VM either, and b = 3/8 would have to rise to 9/16 with a VM more on Node 2. `EXACT`
is such a state, found by trying. On Node 1 VM_b fits if the VM of 4 leaves or, if it stays, the other three do:
1/2 + (1/2)⁴. Beside the new VM it fits if that one and the VM of 4 leave, 1/4, and in four of the 32 cases else, 1/8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from roost.experiments.departures import Node, Size, SizeShares, free_later, room, some_room
from roost.experiments.study import (
    Cell,
    CellContext,
    FigureRow,
    FigureValue,
    Findings,
    ReportTable,
    Study,
    beyond_chance,
    distinct,
    figure,
    mean,
    numbers,
    pick,
)
from roost.model.scarcity import SCARCITY
from roost.model.synthetic import TYPES
from roost.plotting import DASHES, PALETTE, new_figure
from roost.rules.preferences.best_fit import best_fit
from roost.rules.preferences.emptiest import emptiest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Situation:
    """Some nodes, a VM to be placed now, and one that may come later."""

    nodes: tuple[Node, ...]
    new: Size
    later: Size

    @property
    def options(self) -> list[int]:
        """The nodes with room for the new VM."""
        return [i for i, node in enumerate(self.nodes) if node.fits(self.new)]


SLIDES = (Fraction(6, 16), Fraction(9, 16))  # with the new VM on Node 1, and on Node 2
HALF = Fraction(1, 2)
DRAWN = Situation((Node((4,), ((1,),)), Node((4,), ((1,), (1,), (1,)))), new=(1,), later=(4,))
EXACT = Situation((Node((11,), ((4,), (2,), (1,), (1,))), Node((6,), ((3,),))), new=(3,), later=(7,))

# The D series of the slides, in cores and in 3.5 GiB, and a node that the largest of them takes whole.
KINDS = [(cores, round(memory / 3.5)) for name, (cores, memory) in TYPES.items() if name.startswith("D")]
CAPACITY = max(KINDS)
WEIGHTS = (SCARCITY["cores"], SCARCITY["memory"])
AWARE, AWARE_OF_ANY = "online-aware", "online-aware, VM_b unknown"
SIMPLE = ("best fit", "worst fit")
LEAVING = (0.1, 0.25, 0.5, 0.75, 0.9)


def cells(quick: bool) -> list[Cell]:
    """So many nodes, with each seed."""
    sizes, seeds, states = ((2, 3), (1,), 20) if quick else ((2, 4, 8), (1, 2, 3, 4, 5), 1_000)
    return [
        Cell(f"nodes-{nodes}-seed{seed}", {"nodes": nodes, "leaving": LEAVING, "states": states, "seed": seed})
        for seed in seeds
        for nodes in sizes
    ]


def perform(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """Random states: how likely it is that VM_b can be deployed, by how the new VM was placed."""
    rng = np.random.default_rng([cell["seed"], cell["nodes"]])
    found: dict[tuple[float, str], list[tuple[float, bool]]] = {}
    for done in range(cell["states"]):
        state = draw_state(rng, cell["nodes"])
        for leaving in cell["leaving"]:
            likely = outlook(state, Fraction(str(leaving)))
            best = max(each[state.later] for each in likely.values())
            for name, choose in CHOICES.items():
                own = likely[choose(state, likely)][state.later]
                found.setdefault((leaving, name), []).append((float(own), own == best))
        context.tell((done + 1) / cell["states"], done + 1)
    return [
        {
            "nodes": cell["nodes"],
            "leaving": leaving,
            "choice": name,
            "seed": cell["seed"],
            "probability": float(np.mean([likely for likely, _ in each])),
            "best": float(np.mean([best for _, best in each])),
        }
        for (leaving, name), each in found.items()
    ]


def draw_state(rng: np.random.Generator, count: int) -> Situation:
    """Nodes as full as it happens, a new VM that has a choice, and a VM that fits nowhere as long as nobody leaves."""
    while True:
        nodes = tuple(_draw_node(rng) for _ in range(count))
        new = [kind for kind in KINDS if sum(node.fits(kind) for node in nodes) > 1]
        later = refused(nodes)
        if new and later:
            return Situation(nodes, new[rng.integers(len(new))], later[rng.integers(len(later))])


def _draw_node(rng: np.random.Generator) -> Node:
    """Takes VMs of any type that fits until so many cores are taken."""
    node, wanted = Node(CAPACITY), rng.random() * CAPACITY[0]
    while CAPACITY[0] - node.free[0] < wanted and (some := [kind for kind in KINDS if node.fits(kind)]):
        node = node.beside(some[rng.integers(len(some))])
    return node


def refused(nodes: Sequence[Node]) -> list[Size]:
    """The types for which no node has room now."""
    return [kind for kind in KINDS if not any(node.fits(kind) for node in nodes)]


Outlook = Mapping[int, Mapping[Size, Fraction]]  # by the node that the new VM goes to: by type, whether one has room


def outlook(state: Situation, leaving: Fraction) -> Outlook:
    """How likely each type that is refused now can be deployed later, for every node that the new VM may go to."""
    kinds = {*refused(state.nodes), state.later}
    return {
        option: {kind: some_room(room(node, kind) for node in nodes) for kind in kinds}
        for option, nodes in _placed(state, leaving).items()
    }


def _placed(state: Situation, leaving: Fraction) -> Mapping[int, Sequence[SizeShares]]:
    """What is free on each node later, by the node that the new VM goes to."""
    before = [free_later(node, leaving) for node in state.nodes]
    beside = {option: free_later(state.nodes[option].beside(state.new), leaving) for option in state.options}
    return {option: [*before[:option], node, *before[option + 1 :]] for option, node in beside.items()}


def _by_rule(rule: Callable[..., float], state: Situation, _: Outlook) -> int:
    """By a rule that Roost ships, which sees only what is free now."""
    vm = SimpleNamespace(priority=0, demand=[state.new])

    def score(option: int) -> float:
        node = state.nodes[option]
        return rule(SimpleNamespace(free=[node.free], capacity=node.capacity, generation=0), vm, WEIGHTS)

    return min(state.options, key=score)


def _aware(state: Situation, likely: Outlook) -> int:
    """The node that leaves VM_b the best chance."""
    return max(state.options, key=lambda option: likely[option][state.later])


def _aware_of_any(state: Situation, likely: Outlook) -> int:
    """The same for any type that is refused now, as nobody knows which of them will come."""
    return max(state.options, key=lambda option: sum(likely[option].values()))


CHOICES: Mapping[str, Callable[[Situation, Outlook], int]] = {
    "best fit": partial(_by_rule, best_fit),
    "worst fit": partial(_by_rule, emptiest),
    AWARE: _aware,
    AWARE_OF_ANY: _aware_of_any,
}


@dataclass(frozen=True)
class Worked:
    """A state of the example, with the new VM on each of its nodes."""

    expected: tuple[Fraction, ...]  # nodes with room for VM_b
    probability: tuple[Fraction, ...]  # that there is one


def work_out(state: Situation) -> Worked:
    """Exactly."""
    rooms = [[room(node, state.later) for node in nodes] for nodes in _placed(state, HALF).values()]
    return Worked(tuple(sum(each, Fraction(0)) for each in rooms), tuple(some_room(each) for each in rooms))


def find(rows: Sequence[FigureRow]) -> Findings:
    """The example beside the slides', and what a choice is worth in general."""
    drawn, exact = work_out(DRAWN), work_out(EXACT)
    reproduced = drawn.expected == exact.probability == SLIDES
    settings = [(nodes, leaving) for nodes in distinct(rows, "nodes") for leaving in distinct(rows, "leaving")]
    best = all(
        beyond_chance(_gain(rows, name, nodes=nodes, leaving=leaving), "probability")
        for name in SIMPLE
        for nodes, leaving in settings
    )
    means = ", ".join(
        f"{mean(pick(rows, choice=name), 'probability'):.1%} ({name})" for name in (*SIMPLE, AWARE_OF_ANY, AWARE)
    )
    first, second = drawn.probability
    verdict = (
        f"the slides' 6/16 and 9/16 are {'' if reproduced else 'not '}reproduced, but as the number of nodes with room "
        f"on the average: the probability that there is one is {first} and {second}, "
        f"{'for the same choice' if first < second else 'for the other choice'}; over random states VM_b can be "
        f"deployed with a mean probability of {means}; the last cannot be beaten, and a choice that is aware of "
        f"departures, though not of VM_b, is {'' if best else 'not '}better than both fits, beyond chance, in every "
        "setting"
    )
    return Findings(reproduced and best, verdict, [_example(drawn, exact), *_general(rows, settings)], REMARKS)


def _gain(rows: Sequence[FigureRow], over: str, **setting: FigureValue) -> list[FigureRow]:
    """What awareness brings, seed by seed: the states are the same."""
    aware, other = (pick(rows, choice=name, **setting) for name in (AWARE_OF_ANY, over))
    both = zip(numbers(aware, "probability"), numbers(other, "probability"), strict=True)
    return [{"probability": a - b} for a, b in both]


def _example(drawn: Worked, exact: Worked) -> ReportTable:
    headings = ["", "new VM on Node 1", "on Node 2"]
    table = [
        ["the slides", "6/16", "9/16"],
        ["as drawn (one VM and three; VM_b takes a node): nodes with room, on the average", *_shown(drawn.expected)],
        ["the same: probability that one or more has room", *_shown(drawn.probability)],
        ["if Node 2 is too small for VM_b: probability that one or more has room", *_shown(exact.probability)],
    ]
    return ReportTable("The example, every VM leaving with probability 1/2", headings, table)


def _shown(figures: Sequence[Fraction]) -> list[str]:
    """Of sixteen where that is whole, as the slides have it."""
    return [f"{16 * each}/16" if 16 % each.denominator == 0 else str(each) for each in figures]


def _general(rows: Sequence[FigureRow], settings: Sequence[tuple[int, float]]) -> list[ReportTable]:
    titles = {
        "probability": "Probability that VM_b can be deployed, %, by how the new VM was placed",
        "best": "States in which no other node would have left a larger probability, %",
    }
    tables = []
    for column, title in titles.items():
        table = []
        for nodes, leaving in settings:
            own = pick(rows, nodes=nodes, leaving=leaving)
            shown = [figure(pick(own, choice=name), column, 1, 100) for name in CHOICES]
            table.append([str(nodes), f"{leaving:g}", *shown])
        tables.append(ReportTable(title, ["nodes", "leaving", *CHOICES], table))
    return tables


REMARKS = (
    (
        "The slides add the two nodes' probabilities, which counts twice that both have room: it is the number of "
        "nodes with room on the average. Both measures favour Node 2. How the drawing was reconstructed, and why a "
        "probability of exactly 6/16 needs a Node 2 that is too small for VM_b, is told in `roost.experiments.online`."
    ),
    (
        "In general: nodes of 16 cores and 112 GiB run VMs of the slides' D series, each node until a random share of "
        "its cores is taken. The new VM is of a type for which two nodes or more have room, VM_b of one for which none "
        "has."
    ),
    (
        "The online-aware choice knows VM_b and takes the node that leaves it the largest probability: nothing can be "
        "better, and the question is by how much. The one that does not know VM_b takes the mean over all types that "
        "are refused now; it is the one that an allocator could make, if it knew how likely VMs leave."
    ),
    "Best fit and worst fit are the shipped rules `best_fit` and `emptiest`, with their weights of cores and memory.",
    "It is one decision and one later VM; what such choices do to a zone over weeks is not asked here.",
    "±: where the mean lies with 95 % confidence, over the seeds.",
)


def draw(rows: Sequence[FigureRow]) -> Figure:
    """Over the probability of leaving: what a choice loses against the best one, and how often it is the best."""
    sizes, leaving = distinct(rows, "nodes"), distinct(rows, "leaving")
    shown, panels = new_figure(2, len(sizes), title="Placing with departures in mind", height=7.0, sharey="row")
    for column, nodes in enumerate(sizes):
        of_nodes = pick(rows, nodes=nodes)
        for panel, what in ((panels[column], _lost), (panels[len(sizes) + column], _often)):
            for i, name in enumerate(CHOICES):
                values = [what(pick(of_nodes, leaving=p), name) for p in leaving]
                panel.plot(leaving, values, color=PALETTE[i], linestyle=DASHES[i], marker="o", label=name)
            panel.set_xlabel("probability that a VM leaves")
        panels[column].set_title(f"{nodes} nodes")
    panels[0].set_ylabel("probability for VM_b, against\nonline-aware, points")
    panels[len(sizes)].set_ylabel("states with the best choice, %")
    panels[len(sizes) - 1].legend(loc="lower right")  # where all choices come to the same
    return shown


def _lost(rows: Sequence[FigureRow], name: str) -> float:
    return 100 * (mean(pick(rows, choice=name), "probability") - mean(pick(rows, choice=AWARE), "probability"))


def _often(rows: Sequence[FigureRow], name: str) -> float:
    return 100 * mean(pick(rows, choice=name), "best")


SLIDES_ONLINE = Study(
    name="slides-online",
    title="placing with departures in mind",
    source='the slides "Azure\'s VM Allocator Internals", on the online nature of allocation',
    question="If VMs leave by chance, which machine should a new VM take so that a later one can be deployed?",
    cells=cells,
    perform=perform,
    find=find,
    draw=draw,
)
