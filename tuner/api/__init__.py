"""The admin API: ``/api/v1``, health and metrics, on a port of its own."""
