"""Who holds which weight version: versions, leases and their gRPC service and client.

The bytes are elsewhere (``protocols.WeightStore``); only names, paths and fingerprints pass here.
"""

from rlax_plugin.parameter_server.client import ParameterServerClient
from rlax_plugin.parameter_server.kept import (
    Listed,
    kept_version,
    listed_versions,
    record_versions,
)
from rlax_plugin.parameter_server.messages import version_from_proto, version_to_proto
from rlax_plugin.parameter_server.service import ParameterServer, serve_parameter_server
from rlax_plugin.parameter_server.versions import Lease, VersionTable

__all__ = [
    "Lease",
    "Listed",
    "ParameterServer",
    "ParameterServerClient",
    "VersionTable",
    "kept_version",
    "listed_versions",
    "record_versions",
    "serve_parameter_server",
    "version_from_proto",
    "version_to_proto",
]
