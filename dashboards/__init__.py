"""Grafana dashboards, and the code that makes them. `python -m dashboards` writes the JSON files beside it."""
