"""`python -m dashboards`: writes the dashboards beside this file, where they are committed."""

from pathlib import Path

from dashboards.drawing import board_json
from dashboards.fleet import FLEET
from dashboards.serving import SERVING

BOARDS = (SERVING, FLEET)

if __name__ == "__main__":
    for board in BOARDS:
        (Path(__file__).parent / board.file).write_text(board_json(board), encoding="utf-8")
