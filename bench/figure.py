"""Define a figure: a ratio, its target, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from bench.measure import Ratio


class Figure(Struct, frozen=True):
    """One line of the table. A figure without a target is printed for orientation only."""

    group: str
    name: str
    ratio: Ratio
    target: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    unit: Literal["time", "bytes"] = "time"

    @property
    def verdict(self) -> Literal["ok", "OVER", ""]:
        if self.target is None:
            return ""
        within = self.ratio.median <= self.target if self.bound == "at most" else self.ratio.median >= self.target
        return "ok" if within else "OVER"

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "figure": self.name,
            "ratio": round(self.ratio.median, 3),
            "range": [round(self.ratio.low, 3), round(self.ratio.high, 3)],
            "subject_ns": round(self.ratio.subject_ns, 1),
            "floor_ns": round(self.ratio.floor_ns, 1),
            "target": self.target,
            "bound": self.bound,
            "verdict": self.verdict,
        }


HEADINGS = ("figure", "ratio", "range", "subject", "floor", "target", "")


def table(figures: Iterable[Figure]) -> list[str]:
    """Return the figures as aligned lines, with a heading for each group."""
    rows: list[tuple[str, ...]] = []
    group = ""
    for one in figures:
        if one.group != group:
            group = one.group
            rows.append((group.upper(), *("" for _ in HEADINGS[1:])))
        rows.append(_row(one))
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    return [_line(row, widths) for row in (HEADINGS, *rows)]


def _row(one: Figure) -> tuple[str, ...]:
    ratio = one.ratio
    sign = "<=" if one.bound == "at most" else ">="
    return (
        f"  {one.name}",
        f"{_short(ratio.median)}x",
        f"[{_short(ratio.low)}-{_short(ratio.high)}]",
        _amount(ratio.subject_ns, one.unit),
        _amount(ratio.floor_ns, one.unit),
        "" if one.target is None else f"{sign} {one.target:g}x",
        one.verdict,
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first, *rest = (
        cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))
    )
    return "  ".join((first, *rest)).rstrip()


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _amount(value: float, unit: str) -> str:
    return _time(value) if unit == "time" else f"{value / 1e3:.1f} kB" if value < 1e6 else f"{value / 1e6:.0f} MB"


def _time(ns: float) -> str:
    return f"{ns:.0f} ns" if ns < 10_000 else f"{ns / 1e3:.0f} us" if ns < 10_000_000 else f"{ns / 1e6:.1f} ms"
