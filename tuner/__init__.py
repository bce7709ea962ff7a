"""Learning, guarding, persisting, REST, metrics, the command line and, later, fleet adapters."""
