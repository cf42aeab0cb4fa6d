"""Who is who in a deployment: the authority, enrolment of sites, and the identities that TLS checks."""
