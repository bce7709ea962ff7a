"""A database's URL as it may be shown: without its password, also where it cannot be read as a URL."""

import re

HIDDEN = "***"


def without_password(url: str) -> str:
    """`url` with `HIDDEN` for what stands between the user and the last @, and for passwords among its options."""
    shown = re.sub(r"(://[^:@/?]*:).*(?=@)", rf"\g<1>{HIDDEN}", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", rf"\g<1>{HIDDEN}", shown, flags=re.IGNORECASE)
