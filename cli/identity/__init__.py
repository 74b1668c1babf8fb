"""Commands of the CA: authorities, certificates, the certificate log, terms, witnesses."""
