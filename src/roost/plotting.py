"""How plots look, wherever they are drawn: colours that colour-blind people tell apart, quiet axes, repeatable bytes.

Figures are objects of their own (nothing of `pyplot`, whose state is global), drawn without a display. Matplotlib is
part of the extra `data` and is loaded by the first figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, the strongest first; yellow is left out, as a line of it is hardly seen on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, QUIET, GRID = "#222222", "#666666", "#e4e4e4"  # of titles; of ticks and remarks; of grid lines
DASHES = ("-", "--", "-.", ":")  # a second way to tell lines apart
DPI = 100  # a figure 12 inches wide has 1,200 pixels
FORMATS = ("svg", "png")

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.prop_cycle": f"cycler('color', {list(PALETTE)})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.dpi": DPI,
    "figure.facecolor": "white",
    "figure.titlesize": 15,
    "figure.titleweight": "bold",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "grid.color": GRID,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",  # text stays text: small files, and readers that read aloud
    "svg.hashsalt": "roost",
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelsize": 9,
    "ytick.color": QUIET,
    "ytick.labelsize": 9,
}


@contextmanager
def styled() -> Iterator[None]:
    """Whatever is drawn within looks as all of ours does; Matplotlib's settings are as before afterwards."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidInput("plots", "need Matplotlib", "install it with: pip install 'roost[data]'") from None
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's own settings of Matplotlib are
        mpl.rcParams.update(STYLE)
        yield


def blank_figure(*, title: str = "", width: float = 12.0, height: float = 4.0) -> Figure:
    """A figure of so many inches, for panels of any layout."""
    with styled():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
        return figure


def new_figure(
    rows: int = 1, columns: int = 1, *, title: str = "", width: float = 12.0, height: float = 4.0, **grid: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of so many inches, and its panels, row by row; `grid` is for `Figure.subplots` (sharex, …)."""
    figure = blank_figure(title=title, width=width, height=height)
    with styled():
        return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flat)


def svg(figure: Figure) -> str:
    """As an element to put into an HTML page."""
    text = _drawn(figure, "svg").decode()
    return text[text.index("<svg") :]


def save(figure: Figure, path: Path) -> None:
    """Write it as SVG or PNG, by the ending of the file."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InvalidInput(str(path), f"ends in {path.suffix!r}", "a figure is written as .svg or .png")
    data = _drawn(figure, kind)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be written: {error.strerror}") from None


def _drawn(figure: Figure, kind: str) -> bytes:
    """The same figure gives the same bytes: nothing in it tells when and by which version it was drawn."""
    nothing = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, metadata=nothing[kind])
    return buffer.getvalue()
