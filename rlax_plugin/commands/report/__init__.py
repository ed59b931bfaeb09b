"""``rlax report`` and ``rlax compare``: a run's records as one HTML page that needs no network."""
