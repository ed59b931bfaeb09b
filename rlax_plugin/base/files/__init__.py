"""Files: of a run, on a disk or an object store; private, sealed, checked places."""
