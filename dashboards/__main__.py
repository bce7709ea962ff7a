"""`python -m dashboards`: writes the dashboards beside this file, where they are committed."""

from pathlib import Path

from dashboards.serving import serving_json

if __name__ == "__main__":
    (Path(__file__).parent / "paceline.json").write_text(serving_json(), encoding="utf-8")
