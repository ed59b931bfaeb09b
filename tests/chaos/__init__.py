"""``make chaos``: runs whose processes, network, disk, clocks and store fail; see ``command``."""
