"""``rlax report``: the records of runs as one HTML page that needs no network."""
