"""What the store knows when serving starts."""

import logging

from policies.records import StoredState
from policies.store import RowRejectedError, Store, StoreUnavailableError

log = logging.getLogger(__name__)


def load_state(store: Store, model: str) -> StoredState | None:
    """What the store knows; None, and a line in the log, when it cannot be read: serving goes on without it."""
    try:
        store.upgrade()
        return store.load_state(model)
    except (StoreUnavailableError, RowRejectedError) as error:
        log.warning("serving starts without the store: %s", error)
        return None
