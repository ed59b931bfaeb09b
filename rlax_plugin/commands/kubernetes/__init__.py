"""``rlax launch``: writes the Kubernetes manifests of a run; nothing here talks to a cluster."""
