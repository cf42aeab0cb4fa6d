"""Identities in a deployment: the certificate authority (CA), enrolment of sites, and the server's TLS identity."""
