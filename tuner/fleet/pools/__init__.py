"""Which replica serves a request: lanes, what is learned of their speed, and the choice among them."""
