"""Alembic's migrations, run by `policies.store.Store.upgrade` from this package; no alembic.ini is needed.

A new revision is a file in versions/ named ``NNNN_what_it_does.py`` whose revision id is its number.
"""
