"""Functions of the user's that are rewards or filters: reading, checking, copying, calling them.

A config names one by ``function: FILE.py:NAME`` (``config/functions.py``). ``parts`` makes a part
of it, so that everything else treats it as one.
"""
