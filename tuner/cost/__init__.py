"""What cycles and drafting cost, and what that makes of acceptance."""
