"""What a run leaves behind: a folder of tidy data. Same experiment and seed, same bytes; but for `timing.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    import polars as pl

RUN, TIMING = "run.json", "timing.json"
TABLES = ("timeline", "rates", "requests")
AS_CSV = ("timeline", "rates")  # besides Parquet
TOLD = ("name", "seed", "experiment", "facts", "summary")  # in run.json
AGAIN = "remove this folder and go on with `roost sim resume`"


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    name: str  # of the run: a label that tells it from others beside it, such as its policy
    seed: int
    experiment: Mapping[str, Any]  # what was asked for, as written in an experiment file
    facts: Mapping[str, Any]  # of the zone and the workload: machines, cores, requests, VMs, span_s, source …
    summary: Mapping[str, float | None]  # measures by name; None where there was nothing to measure
    timeline: pl.DataFrame
    rates: pl.DataFrame
    requests: pl.DataFrame
    timing: Mapping[str, float]  # seconds and memory that the run itself took; not repeatable

    def save(self, folder: Path) -> None:
        """Write everything; `run.json` last, so that a folder that has it is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            table = getattr(self, name)
            table.write_parquet(folder / f"{name}.parquet", compression="zstd", statistics=False)
            if name in AS_CSV:
                table.write_csv(folder / f"{name}.csv", float_precision=6)
        (folder / TIMING).write_bytes(pretty(self.timing))
        run = {key: getattr(self, key) for key in TOLD}
        (folder / RUN).write_bytes(pretty(run))

    @classmethod
    def load(cls, folder: Path) -> RunResult:
        """Read what `save` wrote."""
        import polars as pl

        try:
            run = msgspec.json.decode((folder / RUN).read_bytes(), type=dict[str, Any])
            timing = msgspec.json.decode((folder / TIMING).read_bytes(), type=dict[str, float])
            tables = {name: pl.read_parquet(folder / f"{name}.parquet") for name in TABLES}
        except FileNotFoundError as error:
            missing = Path(error.filename or str(error)).name
            raise InvalidInput(str(folder), f"has no {missing}", "give the folder of a finished run") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
            raise InvalidInput(str(folder), f"cannot be read: {error}", AGAIN) from None
        if set(run) != set(TOLD):
            raise InvalidInput(str(folder / RUN), f"must tell {', '.join(TOLD)}", AGAIN)
        run |= {"timing": timing, **tables}
        return cls(**run)


def pretty(data: object) -> bytes:
    """As JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
