"""Weight versions: publishing, the parameter server, leases, verification, fingerprints."""
