"""Server and sites as processes of their own, joined by gRPC streams over mutual TLS 1.3.

`fedal.proto` is the contract; what Python needs of it is made with
`python -m grpc_tools.protoc -I. --descriptor_set_out=fedal.binpb --pyi_out=. fedal.proto`.
"""

import os
import sys

# gRPC offers no switch for TLS 1.3 only. This suite is for TLS 1.2 with RSA certificates, and ours are elliptic: below
# 1.3 none is left to agree on. The suites of 1.3 are not affected. gRPC reads the variable once, when it is imported.
_SUITE = "ECDHE-RSA-AES256-GCM-SHA384"
TLS_1_3_ONLY = os.environ.get("GRPC_SSL_CIPHER_SUITES") == _SUITE or "grpc" not in sys.modules
os.environ["GRPC_SSL_CIPHER_SUITES"] = _SUITE

# A line of gRPC's own for every stranger's failed handshake would bury the log; `GRPC_VERBOSITY=INFO` brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
