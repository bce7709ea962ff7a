"""What Grafana puts in the place of its variables before Prometheus sees a query."""

VALUES = {
    "$__rate_interval": "10s",
    "$__range": "60s",
    "$job": ".+",
    "$instance": ".+",
    "$upstream": ".+",
    "$route": ".+",
}


def substitute(query: str) -> str:
    """The query with every variable set to All and the ranges of a test."""
    for variable, value in VALUES.items():
        query = query.replace(variable, value)
    return query
