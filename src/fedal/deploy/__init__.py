"""Server and sites as separate processes, connected by gRPC streams over mutual TLS 1.3.

`fedal.proto` is the contract. Its Python files are generated with
`python -m grpc_tools.protoc -I. --descriptor_set_out=fedal.binpb --pyi_out=. fedal.proto`.
"""

import os
import sys

# gRPC has no switch for TLS 1.3 only. This suite is for TLS 1.2 with RSA certificates; ours use elliptic curves, so no
# suite below 1.3 is left to agree on. Suites of TLS 1.3 are not affected. gRPC reads the variable once, on import.
_SUITE = "ECDHE-RSA-AES256-GCM-SHA384"
TLS_1_3_ONLY = os.environ.get("GRPC_SSL_CIPHER_SUITES") == _SUITE or "grpc" not in sys.modules
os.environ["GRPC_SSL_CIPHER_SUITES"] = _SUITE

# By default gRPC logs every failed handshake, which would flood our log. `GRPC_VERBOSITY=INFO` restores those lines.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
