"""Draws a comparison as a PNG: a bar of regret for each controller in each scenario, with its interval.

With Pillow, since all that is drawn is bars and words: matplotlib would bring eight libraries for them.
"""

from collections.abc import Sequence
from io import BytesIO
from math import isfinite
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tuner.output_file import write
from tuner.replay.run import ORACLE, OURS
from tuner.replay.summary import Cell, Comparison

_BAR, _GAP = 16, 4
_LABEL, _CHART, _VALUE, _MARGIN = 170, 300, 110, 24
_COLUMNS = 3
_TITLE = 30
_TEXT, _FAINT, _WHITE = "#1b1b1b", "#c8c8c8", "#ffffff"
OURS_COLOUR, OTHER_COLOUR = "#0b6e4f", "#8da0b6"
_LEAST_SCALE = 2.0
"""Percent of regret that the axis shows at least."""
_MOST = 40.0
"""Percent at which bars end, with an arrow: plain, or a controller that is lost, would hide all differences."""


def plot(comparison: Comparison, path: Path) -> None:
    """Write the picture. Raises OutputFileError."""
    panels = [(scenario, _chosen(comparison, scenario)) for scenario in comparison.scenarios]
    if len(panels) > 1:
        overall = [comparison.overall(controller) for controller in comparison.controllers]
        panels.insert(0, ("mean over scenarios", _ordered([cell for cell in overall if cell is not None])))
    panels = [panel for panel in panels if panel[1]]
    columns = min(_COLUMNS, len(panels))
    width = _LABEL + _CHART + _VALUE + _MARGIN
    rows = [panels[first : first + columns] for first in range(0, len(panels), columns)]
    heights = [_TITLE + max(len(cells) for _, cells in row) * (_BAR + _GAP) + _MARGIN for row in rows]
    image = Image.new("RGB", (columns * width + _MARGIN, sum(heights) + _TITLE + _MARGIN), _WHITE)
    draw = ImageDraw.Draw(image)
    seeds = len(comparison.seeds)
    said = f"Time over the oracle's in percent, {seeds} seed{'s' if seeds > 1 else ''}; lines are 95 % intervals"
    draw.text((_MARGIN, _MARGIN // 2), said, fill=_TEXT, font=ImageFont.load_default(13))
    top = _MARGIN // 2 + _TITLE
    for row, height in zip(rows, heights, strict=True):
        for column, (title, cells) in enumerate(row):
            _panel(draw, _MARGIN + column * width, top, title, cells)
        top += height
    drawn = BytesIO()
    image.save(drawn, format="PNG")
    write(path, "--plot", drawn.getvalue())


def _chosen(comparison: Comparison, scenario: str) -> list[Cell]:
    cells = [comparison.cell(scenario, controller) for controller in comparison.controllers]
    return _ordered([cell for cell in cells if cell is not None])


def _ordered(cells: Sequence[Cell]) -> list[Cell]:
    """By regret, without the oracle, whose is zero; of the fixed arms the best one."""
    fixed = sorted((cell for cell in cells if ":" in cell.controller), key=lambda cell: cell.regret.estimate)
    others = [cell for cell in cells if ":" not in cell.controller and cell.controller != ORACLE]
    return sorted([*others, *fixed[:1]], key=lambda cell: cell.regret.estimate)


def _panel(draw: ImageDraw.ImageDraw, left: int, top: int, title: str, cells: Sequence[Cell]) -> None:
    words, heading = ImageFont.load_default(13), ImageFont.load_default(16)
    draw.text((left, top), title, fill=_TEXT, font=heading)
    scale = min(_MOST, max(_LEAST_SCALE, *(cell.regret.estimate for cell in cells)))
    zero = left + _LABEL

    def place(percent: float) -> float:
        return zero + _CHART * min(max(percent, 0.0), scale) / scale

    for index, cell in enumerate(cells):
        y = top + _TITLE + index * (_BAR + _GAP)
        regret = cell.regret
        colour = OURS_COLOUR if cell.controller == OURS else OTHER_COLOUR
        draw.text((left, y), cell.controller, fill=_TEXT, font=words)
        draw.rectangle((zero, y, max(place(regret.estimate), zero + 1), y + _BAR - 1), fill=colour)
        middle = y + _BAR // 2
        if isfinite(regret.high):
            draw.line((place(regret.low), middle, place(regret.high), middle), fill=_TEXT, width=2)
        beyond = " >" if regret.estimate > scale else ""
        draw.text((zero + _CHART + 8, y), f"{regret.estimate:.2f}{beyond}", fill=_TEXT, font=words)
    bottom = top + _TITLE + len(cells) * (_BAR + _GAP)
    draw.line((zero, top + _TITLE - 4, zero, bottom), fill=_FAINT, width=1)
